// Names and numbers of one line of text, however the two are joined: "loss: 2.3", "loss=2.3", "loss 2.3", "[step 249]", "step 12/500 | ...".
#ifndef LOSSGAUGE_SERVER_REPLAY_KEY_VALUES_H_
#define LOSSGAUGE_SERVER_REPLAY_KEY_VALUES_H_

#include <string_view>

#include "server/replay/log_record.h"

namespace lossgauge::replay {

// Adds to `record` what the line says. `terminated` false: the file ends in the line, so that a number at its very end may lack digits and is
// left out; returns true if one was. A comma within a number parts thousands of what counts, such as steps, and is a decimal point elsewhere; the
// record says which was found.
bool AddKeyValues(std::string_view line, bool terminated, LogRecord* record);

// Which rank printed the line, by its prefix: "31: ...", "[default7]:...", "0: [default0]: ...", "[rank3]:"; empty if it does not say.
std::string_view RankTag(std::string_view line);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_KEY_VALUES_H_
