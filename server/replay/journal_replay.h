// A bundle's journal through detectors and policy: the judge hears again what it was told, ranks, events and signs of life, at the times it was told.
//
// By the policies that judged, each verdict must come out as it was given, to the last bit, and what does not is told. By another policy the same records
// show what it would have said.
#ifndef LOSSGAUGE_SERVER_REPLAY_JOURNAL_REPLAY_H_
#define LOSSGAUGE_SERVER_REPLAY_JOURNAL_REPLAY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/detect/policy.h"
#include "server/replay/replay.h"

namespace lossgauge::replay {

struct JournalOutcome {
  ReplayResult result;
  std::uint64_t steps = 0;
  std::uint64_t attempts = 0;
  std::uint32_t most_ranks = 0;     // of a step
  std::optional<Moment> first;      // step
  std::uint64_t pieces_lost = 0;    // times at which something of the run was not kept
  std::uint64_t verdicts = 0;       // given in the run's time
  std::uint64_t verdicts_unlike = 0;  // of these, those that did not come out as they were given
  std::optional<Moment> first_unlike;
  std::string error;                // why it ends early; what stands before it was judged
};

// Nothing if the bundle has no journal, or one that begins nowhere. `other`: judge by this policy instead. Errors name the path.
absl::StatusOr<std::optional<JournalOutcome>> ReplayJournal(const std::string& path, const std::optional<detect::PolicySet>& other);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_JOURNAL_REPLAY_H_
