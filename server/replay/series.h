// Which of a log's losses is the one to judge, and from which name its steps come. Decided once, by the first records: by name, then by how many
// points it has.
#ifndef LOSSGAUGE_SERVER_REPLAY_SERIES_H_
#define LOSSGAUGE_SERVER_REPLAY_SERIES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/replay/log_record.h"

namespace lossgauge::replay {

struct Series {
  std::string shape;      // only records of this grammar make points
  std::string loss_name;  // normal
  bool has_steps = true;  // false: points are numbered
  double spacing = 1;     // median difference of the steps of consecutive points
};

// Nothing if no record has a training loss.
std::optional<Series> ChooseSeries(const std::vector<LogRecord>& records);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_SERIES_H_
