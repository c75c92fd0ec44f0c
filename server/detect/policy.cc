#include "server/detect/policy.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/ring_abi.h"
#include "server/detect/policy_fields.h"

namespace lossgauge::detect {
namespace {

constexpr PolicyField kFields[] = {
    {"loss", "deviations", &Policy::loss_deviations, 2, 100},
    {"loss", "floor_nats", &Policy::loss_floor_nats, 0.001, 10},
    {"loss", "baseline_steps", &Policy::loss_baseline_steps, 8, 128, true},
    {"loss", "close_steps", &Policy::loss_close_steps, 1, 1000, true},
    {"loss", "blip_close_steps", &Policy::loss_blip_close_steps, 1, 1000, true},
    {"loss", "unrecovered_steps", &Policy::loss_unrecovered_steps, 10, 100000, true},
    {"loss", "rising_steps", &Policy::loss_rising_steps, 5, 100000, true},
    {"loss", "divergence_nats", &Policy::loss_divergence_nats, 0.01, 100},
    {"loss", "hopeless_nats", &Policy::loss_hopeless_nats, 1, 1e9},
    {"loss", "collapse_nats", &Policy::loss_collapse_nats, 0, 10},
    {"loss", "collapse_from_nats", &Policy::loss_collapse_from_nats, 0.01, 100},
    {"loss", "zero_grad_steps", &Policy::collapse_zero_grad_steps, 2, 100000, true},
    {"level_shift", "slack_deviations", &Policy::shift_slack_deviations, 0.1, 10},
    {"level_shift", "alarm_deviations", &Policy::shift_alarm_deviations, 1, 1000},
    {"level_shift", "floor_nats", &Policy::shift_floor_nats, 0.001, 10},
    {"grad_norm", "deviations", &Policy::grad_deviations, 2, 100},
    {"grad_norm", "factor", &Policy::grad_factor, 1.1, 1e6},
    {"grad_norm", "large_factor", &Policy::grad_large_factor, 1.1, 1e6},
    {"grad_norm", "large_deviations", &Policy::grad_large_deviations, 0, 100},
    {"max_abs_logit", "deviations", &Policy::logit_deviations, 2, 100},
    {"max_abs_logit", "factor", &Policy::logit_factor, 1.05, 1e6},
    {"normalizer_drift", "floor_nats", &Policy::drift_floor_nats, 0.01, 1000},
    {"normalizer_drift", "limit_nats", &Policy::drift_limit_nats, 1, 1e6},
    {"nonfinite", "persist_steps", &Policy::nonfinite_persist_steps, 1, 10000, true},
    {"nonfinite", "close_steps", &Policy::nonfinite_close_steps, 1, 10000, true},
    {"integrity", "halt_steps", &Policy::integrity_halt_steps, 1, 32, true},
    {"integrity", "window_steps", &Policy::integrity_window_steps, 1, 32, true},
    {"accounting", "halts", &Policy::accounting_halts, 0, 1, true},
    {"rank_outlier", "floor_nats", &Policy::outlier_nats, 0.001, 100},
    {"rank_outlier", "deviations", &Policy::outlier_deviations, 2, 100},
    {"rank_outlier", "steps", &Policy::outlier_steps, 1, 5, true},
    {"repeated_batch", "steps", &Policy::repeated_batch_steps, 2, 1000, true},
    {"slowdown", "factor", &Policy::slowdown_factor, 1.1, 1000},
    {"slowdown", "floor_seconds", &Policy::slowdown_floor_seconds, 0, 3600},
    {"slowdown", "steps", &Policy::slowdown_steps, 1, 10000, true},
    {"time", "fresh_seconds", &Policy::fresh_seconds, 0.1, 86400},
    {"time", "fresh_median_steps", &Policy::fresh_median_steps, 1, 1000},
    {"time", "stall_restart_seconds", &Policy::stall_restart_seconds, 0.2, 604800},
    {"time", "stall_restart_median_steps", &Policy::stall_restart_median_steps, 1, 10000},
    {"time", "phase_limit_seconds", &Policy::phase_limit_seconds, 1, 604800},
    {"time", "first_step_seconds", &Policy::first_step_seconds, 1, 604800},
    {"time", "attempt_conflict_seconds", &Policy::attempt_conflict_seconds, 0, 3600},
    {"time", "presence_seconds", &Policy::presence_seconds, 2, 3600},
    {"time", "valid_seconds", &Policy::valid_seconds, 1, 3600},
    {"restart", "repeat_failure_span_steps", &Policy::repeat_failure_span_steps, 0, 10000, true},
    {"restart", "no_progress_attempts", &Policy::no_progress_attempts, 2, 1000, true},
};

}  // namespace

std::span<const PolicyField> PolicyFields() { return kFields; }

std::shared_ptr<const state::PolicyView> ViewOf(const Policy& policy) {
  auto view = std::make_shared<state::PolicyView>();
  view->version = policy.version;
  view->mode = policy.mode;
  for (const PolicyField& field : kFields) view->thresholds.push_back({std::string(field.section), std::string(field.key), policy.*field.value});
  return view;
}

Policy PolicyOf(const state::PolicyView& view, std::size_t* unknown) {
  Policy policy;
  policy.version = view.version;
  policy.mode = view.mode == "shadow" ? "shadow" : "advise";
  if (unknown != nullptr) *unknown = 0;
  for (const auto& threshold : view.thresholds) {
    const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const PolicyField& one) { return one.section == threshold.section && one.key == threshold.key; });
    const bool known = field != std::end(kFields) && threshold.value >= field->low && threshold.value <= field->high;
    if (known) policy.*(field->value) = threshold.value;
    if (!known && unknown != nullptr) ++*unknown;
  }
  return policy;
}

std::string PolicyVersion(const Policy& policy) {
  std::uint64_t hash = lg_ring_mix(policy.shadow() ? 2 : 1);
  for (const PolicyField& field : kFields) {
    hash = lg_ring_mix(hash ^ std::bit_cast<std::uint64_t>(policy.*field.value)) + 0x9e3779b97f4a7c15u;
  }
  return absl::StrFormat("sha-%012x", hash >> 16);
}

const Policy& PolicySet::For(const std::string& run) const {
  const auto it = runs.find(run);
  return it == runs.end() ? defaults : it->second;
}

PolicySet DefaultPolicies() {
  PolicySet set;
  set.defaults.version = PolicyVersion(set.defaults);
  return set;
}

}  // namespace lossgauge::detect
