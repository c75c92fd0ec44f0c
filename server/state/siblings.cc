#include "server/state/siblings.h"

#include <algorithm>
#include <utility>

namespace lossgauge::state {
namespace {

constexpr std::size_t kMaxStumbles = 128;  // about 4 kB of the run's row

}  // namespace

std::optional<Stumble> StumbleOf(const Incident& incident, const RecentSteps& steps) {
  if (incident.open || (incident.condition != Condition::kBlip && incident.condition != Condition::kLossSpike)) return std::nullopt;
  const auto chunks = steps.Chunks();
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    for (const auto& step : **chunk) {
      if (step->step != incident.peak_step || step->attempt != incident.attempt || step->thinned != nullptr) continue;
      return Stumble{incident.id, step->step, step->target_fingerprint, step->unmasked_tokens};
    }
  }
  return std::nullopt;
}

bool SameStumble(const Stumble& a, const Stumble& b) {
  if (a.step != b.step || a.unmasked_tokens != b.unmasked_tokens) return false;
  return a.target_fingerprint == 0 || b.target_fingerprint == 0 || a.target_fingerprint == b.target_fingerprint;
}

void Stumbles::Add(Stumble stumble) {
  std::erase_if(newest_, [&](const Stumble& known) { return known.incident_id == stumble.incident_id; });
  newest_.push_back(std::move(stumble));
  if (newest_.size() > kMaxStumbles) newest_.erase(newest_.begin());
}

const Stumble* Stumbles::FindSame(const Stumble& other) const {
  const auto found = std::find_if(newest_.begin(), newest_.end(), [&](const Stumble& known) { return SameStumble(known, other); });
  return found == newest_.end() ? nullptr : &*found;
}

}  // namespace lossgauge::state
