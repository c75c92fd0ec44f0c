// Thresholds of detectors and verdicts. Every number has its default and its reason here; policy.yaml beside this file says the same to
// operators, and LoadPolicy reads such a file.
#ifndef LOSSGAUGE_SERVER_DETECT_POLICY_H_
#define LOSSGAUGE_SERVER_DETECT_POLICY_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lossgauge::detect {

// Plain data. Counts are doubles too, so that one table can read and check them all.
struct Policy {
  // Named in every verdict: declared in the file, else "sha-" and a hash of all values.
  std::string version;
  // "advise", or "shadow": judged and shown, but health and alerts stay calm.
  std::string mode = "advise";

  // Loss. Six robust deviations: once in 1e9 Gaussian steps. The floor is what the cleanest real runs show as odd batches.
  double loss_deviations = 6;
  double loss_floor_nats = 0.12;
  double loss_baseline_steps = 32;  // accepted values before anything is said of the loss; verdict "warming" until then
  double loss_close_steps = 30;     // clean steps that end a spike: documented spikes echo for 10 to 30 steps
  double loss_blip_close_steps = 5;
  // Not back after this many steps. Real spikes that recovered took up to 30 points; 100 leaves them in peace.
  double loss_unrecovered_steps = 100;
  // A rise that never paused is critical earlier, but not before the longest recovery that public logs show.
  double loss_rising_steps = 30;
  double loss_divergence_nats = 0.5;  // an unrecovered shift below this is a level_shift
  double loss_hopeless_nats = 200;    // above the baseline, twice in a row: far beyond any recovered spike (+53 nats)
  double loss_collapse_nats = 0.05;   // within 16 steps from above loss_collapse_from_nats: nothing learns that fast
  double loss_collapse_from_nats = 1;
  double collapse_zero_grad_steps = 20;  // a gradient norm of exactly 0 in a row; one or two are a batch without targets

  // Level shift: CUSUM of deviations, slack 1. Alarm at 10 for white noise (raised where steps are correlated): no false alarm in 2e6 steps,
  // white or AR(0.3); a shift of two deviations is found after 11 steps (median, white noise). A second sum, for shifts of one, goes with it.
  double shift_slack_deviations = 1;
  double shift_alarm_deviations = 10;
  double shift_floor_nats = 0.1;  // a smaller shift is reported, but as info

  // Gradient norm and max|z|, both as logarithms: heavy upper tails in clean runs ask for a factor besides the deviations.
  double grad_deviations = 12;  // BLOOM's lead was 17 deviations at its first value; clean logs of every step reach 12 twice in 1e4 points
  double grad_factor = 3.5;     // BLOOM's: 3.9. Only where every step is seen
  double grad_large_factor = 10;  // times the median of 128: an explosion whatever the noise
  double grad_large_deviations = 2;
  double logit_deviations = 8;
  double logit_factor = 1.5;

  // log Z that wanders off over 512 steps: below the floor nobody needs to know; from the limit on bf16 logits are a quarter of a nat apart.
  double drift_floor_nats = 2;
  double drift_limit_nats = 32;

  double nonfinite_persist_steps = 5;  // in a row: AMP loss scaling alone skips one to three
  double nonfinite_close_steps = 30;

  // Integrity is exact; three broken steps of five are no cosmic ray.
  double integrity_halt_steps = 3;
  double integrity_window_steps = 5;
  double accounting_halts = 0;  // 1: a denominator or reduction mismatch says HALT instead of WATCH

  double outlier_nats = 0.5;
  double outlier_deviations = 8;
  double outlier_steps = 3;  // of the last 5
  double repeated_batch_steps = 3;
  double slowdown_factor = 2;
  double slowdown_floor_seconds = 0.25;  // of excess per step: below it, jitter of a busy host
  double slowdown_steps = 20;

  // Times. Fresh: younger than max(fresh_seconds, fresh_median_steps x median step).
  double fresh_seconds = 60;
  double fresh_median_steps = 5;
  // 600 s is when the watchdogs of collective libraries give up by default.
  double stall_restart_seconds = 600;
  double stall_restart_median_steps = 20;
  double phase_limit_seconds = 7200;  // a declared phase suspends the stall rules for this long
  double first_step_seconds = 1800;   // compiling and the first data can take long
  double attempt_conflict_seconds = 2;
  double presence_seconds = 15;       // a look at the producers older than this is no knowledge
  double valid_seconds = 30;          // how long a verdict holds

  // Restarts.
  double repeat_failure_span_steps = 2;   // "the same step"
  double no_progress_attempts = 3;

  bool shadow() const { return mode == "shadow"; }
};

// "sha-" and 12 hex digits over all values: equal policies have equal versions.
std::string PolicyVersion(const Policy& policy);

// A default policy and, by name of run, others.
struct PolicySet {
  Policy defaults;
  std::map<std::string, Policy> runs;
  const Policy& For(const std::string& run) const;
};

// The defaults above, with their version filled in.
PolicySet DefaultPolicies();

// From YAML text; `name` stands in errors. INVALID_ARGUMENT names file, line and key: unknown or repeated keys, values that are no plain
// numbers (units are part of the key), and values out of their bounds.
absl::StatusOr<PolicySet> ParsePolicy(std::string_view text, const std::string& name);
// NOT_FOUND or PERMISSION_DENIED if the file cannot be read; at most 1 MiB.
absl::StatusOr<PolicySet> LoadPolicy(const std::string& path);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_POLICY_H_
