#include "server/detect/verdict_words.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/detect/producer_watch.h"

namespace lossgauge::detect {

using state::Condition;
using state::Incident;
using state::TimeNs;

std::string Duration(TimeNs ns) {
  const double seconds = static_cast<double>(std::max<TimeNs>(0, ns)) / 1e9;
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  return absl::StrFormat("%.1f h", seconds / 3600);
}

std::string TimesUsual(double factor) {
  return factor < 1e6 ? absl::StrFormat("%.2f x usual", factor) : absl::StrFormat("%.2g x usual", factor);
}

std::string Escalation(const Incident& incident, const Policy& policy, double median_step_seconds) {
  const auto steps = [](double count) { return absl::StrFormat("%.0f", count); };
  switch (incident.condition) {
    case Condition::kLossSpike:
      return absl::StrCat("RESTART if the loss is not back ", steps(policy.loss_unrecovered_steps), " steps after step ", incident.onset_step);
    case Condition::kDivergence:
      return absl::StrCat("RESTART if it still climbs ", steps(policy.loss_rising_steps), " steps after step ", incident.onset_step, ", or is not back after ",
                          steps(policy.loss_unrecovered_steps));
    case Condition::kLevelShift:
      return absl::StrCat("RESTART if it grows to ", policy.loss_divergence_nats, " nats and stays there ", steps(policy.loss_unrecovered_steps), " steps");
    case Condition::kNonfinite:
      return absl::StrCat("RESTART after ", steps(policy.nonfinite_persist_steps), " non-finite steps in a row");
    case Condition::kIntegrity:
      return absl::StrCat("HALT after ", steps(policy.integrity_halt_steps), " broken steps of ", steps(policy.integrity_window_steps));
    case Condition::kStall:
    case Condition::kFrozen:
      return absl::StrCat("RESTART after ", Duration(StallLimitNs(policy, median_step_seconds)), " without a step");
    case Condition::kGradExplosion:
      return "becomes a loss spike if the loss follows";
    case Condition::kAccounting:
      return "never by itself: the policy may say accounting.halts: 1";
    default:
      return "";
  }
}

}  // namespace lossgauge::detect
