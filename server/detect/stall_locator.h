// Where a job hangs, from the status words of its ranks.
#ifndef LOSSGAUGE_SERVER_DETECT_STALL_LOCATOR_H_
#define LOSSGAUGE_SERVER_DETECT_STALL_LOCATOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/state/records.h"

namespace lossgauge::detect {

enum class StallPlace {
  kUnknown,
  kHost,        // a rank's host never came to the step that its peers entered; or no host enters the next step
  kDevice,      // a rank handed a step to its device, which never finished it, while others' did
  kCollective,  // every rank's device works on the same step and none finishes
};

struct StallLocation {
  StallPlace place = StallPlace::kUnknown;
  std::string_view name = "unknown";  // "host", "device", "collective"
  std::optional<std::uint32_t> rank;  // that one, if it is one
  std::int64_t step = -1;             // the step that is not finished
  std::string words;                  // for a person
};

// Pure. Reports of live and frozen producers of one attempt.
StallLocation LocateStall(const std::vector<const state::LivenessReport*>& reports);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_STALL_LOCATOR_H_
