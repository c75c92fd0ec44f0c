// Lines of Megatron-LM, Megatron-DeepSpeed and their kin: "iteration 5/ 100 | consumed samples: ... | lm loss: 2.3E+00 | grad norm: ... |".
#ifndef LOSSGAUGE_SERVER_REPLAY_MEGATRON_LINE_H_
#define LOSSGAUGE_SERVER_REPLAY_MEGATRON_LINE_H_

#include <optional>
#include <string_view>

#include "server/replay/log_point.h"
#include "server/replay/log_record.h"

namespace lossgauge::replay {

// True if the line is one of an iteration or of a validation; `record` then holds what it says. `cut_off` is set where the line ends in a value.
bool ParseMegatronLine(std::string_view line, bool terminated, LogRecord* record, bool* cut_off);

// "saving checkpoint at iteration 500 to /path", and what other trainers say when they save.
std::optional<LogCheckpoint> ParseCheckpointLine(std::string_view line);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_MEGATRON_LINE_H_
