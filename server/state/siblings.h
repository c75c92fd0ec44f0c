// Two runs that stumble over the same step of the same data: the data did it.
//
// Blips and spikes of a run are compared with those of the other runs in memory once they are over. The same peak step is not enough: the targets of
// that step must be the same, by their fingerprint, or, where one of the runs has none, by their number.
#ifndef LOSSGAUGE_SERVER_STATE_SIBLINGS_H_
#define LOSSGAUGE_SERVER_STATE_SIBLINGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/state/incident.h"
#include "server/state/recent_steps.h"

namespace lossgauge::state {

// A blip or spike that is over, and what the run was given at its peak.
struct Stumble {
  std::string incident_id;
  std::int64_t step = 0;
  std::uint64_t target_fingerprint = 0;  // 0: not known
  std::uint64_t unmasked_tokens = 0;
};

// Nothing if it is open, of another condition, or its peak is no longer among the steps.
std::optional<Stumble> StumbleOf(const Incident& incident, const RecentSteps& steps);
bool SameStumble(const Stumble& a, const Stumble& b);

// The newest ones of a run, so that a sibling that comes by later can be told, also after a restart of lossgauged. Bounded.
class Stumbles {
 public:
  void Add(Stumble stumble);
  const Stumble* FindSame(const Stumble& other) const;
  const std::vector<Stumble>& newest() const { return newest_; }  // oldest first

 private:
  std::vector<Stumble> newest_;  // oldest first
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_SIBLINGS_H_
