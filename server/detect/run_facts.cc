// What the facts of a run say of its failure and of its last good step.
#include <algorithm>

#include "server/detect/verdict_policy.h"

namespace lossgauge::detect {

using state::Condition;
using state::Incident;
using state::Severity;

bool AsksForRestart(const Incident& incident) {
  if (incident.severity != Severity::kCritical) return false;
  switch (incident.condition) {
    case Condition::kNonfinite:
    case Condition::kDivergence:
    case Condition::kLossCollapse:
    case Condition::kProducerLost:
    case Condition::kStall:
      return true;
    default:
      return false;
  }
}

bool DamagesModel(Condition condition) {
  switch (condition) {
    case Condition::kNonfinite:
    case Condition::kDivergence:
    case Condition::kLossCollapse:
    case Condition::kLossSpike:
    case Condition::kGradExplosion:
    case Condition::kLogitBlowup:
    case Condition::kIntegrity:
      return true;
    default:
      return false;
  }
}

std::optional<Failure> FailureOf(const RunFacts& facts) {
  const Incident* first = nullptr;
  for (const Incident* incident : facts.open) {
    if (!AsksForRestart(*incident) || !incident->hidden_by.empty()) continue;
    // What damaged the model comes before what ended the job.
    if (first == nullptr || (DamagesModel(incident->condition) && !DamagesModel(first->condition))) first = incident;
  }
  if (first != nullptr) return Failure{first->condition, first->onset_step};
  if (facts.failed) return Failure{Condition::kCount, facts.last_step};  // no condition seen, but the job's own word
  return std::nullopt;
}

std::int64_t LastGoodStep(const RunFacts& facts) {
  std::int64_t good = facts.last_step;
  if (facts.damaged_since >= 0) good = std::min(good, facts.damaged_since - 1);
  for (const Incident* incident : facts.open) {
    if (DamagesModel(incident->condition) && incident->severity >= Severity::kWarning) good = std::min(good, incident->onset_step - 1);
  }
  return std::max<std::int64_t>(-1, good);
}

}  // namespace lossgauge::detect
