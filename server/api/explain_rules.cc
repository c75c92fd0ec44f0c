#include "server/api/explain_rules.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lossgauge::api {
namespace {

using state::Condition;

struct Entry {
  Condition condition;
  ExplainedRule rule;
};

constexpr std::array<Entry, static_cast<std::size_t>(Condition::kCount)> kRules = {{
    {Condition::kLossSpike,
     {"The loss rose above its own trend and stayed there for more than one step. Many spikes pass by themselves.",
      "A loss is too high from {loss.deviations} robust deviations and {loss.floor_nats} nats above the trend of the steps before. More than one such "
      "step, or one that the gradient norm led, is a spike; a lone one is a blip.",
      "It is over after {loss.close_steps} steps in a row that are back at the trend.",
      "WATCH while it is open. Not back {loss.unrecovered_steps} steps after its onset, it becomes a divergence, which asks for RESTART, or below "
      "{loss.divergence_nats} nats a level shift, which does not."}},
    {Condition::kBlip,
     {"A single loss stood out, as an odd batch makes it. Clean runs have many.",
      "One step lies {loss.deviations} robust deviations and {loss.floor_nats} nats above the trend, and its neighbours do not.",
      "It is over after {loss.blip_close_steps} steps that are back at the trend.",
      "Nothing: it is information. More such steps would make it a spike."}},
    {Condition::kLevelShift,
     {"The loss settled on a higher level than before, without a spike.",
      "The sum of the deviations beyond {level_shift.slack_deviations} reached {level_shift.alarm_deviations}, against a baseline that stands still while "
      "the sum rises. Shifts below {level_shift.floor_nats} nats are only information.",
      "It is over when the loss is back at its old level, or when it is acknowledged: then the new level is the normal one.",
      "WATCH from {level_shift.floor_nats} nats on. One that drifts on to {loss.divergence_nats} nats and stays there {loss.unrecovered_steps} steps is a "
      "divergence, which asks for RESTART; acknowledging it before says that it is meant."}},
    {Condition::kDivergence,
     {"The loss went up and did not come back: the model is most likely damaged.",
      "At least {loss.divergence_nats} nats above the baseline {loss.unrecovered_steps} steps after the onset; a rise that never paused counts after "
      "{loss.rising_steps} steps, and twice {loss.hopeless_nats} nats at once.",
      "It is over after {loss.close_steps} steps in a row that are back at the trend, or with a new attempt.",
      "RESTART from the newest checkpoint before the onset, once it is critical. HALT if a restart ends at the same step again, within "
      "{restart.repeat_failure_span_steps} steps."}},
    {Condition::kLogitBlowup,
     {"The largest logit jumped. The loss need not show it yet.",
      "The logarithm of max|z| lies {max_abs_logit.deviations} deviations above its usual value, and max|z| is at least {max_abs_logit.factor} times that.",
      "It is over when max|z| is back at its usual size.", "WATCH while it is open. If the loss follows, the spike names it as its cause."}},
    {Condition::kNormalizerDrift,
     {"log Z wanders away from 0 while the loss looks fine: softmax does not care about a constant added to all logits, 16-bit logits do.",
      "The mean of log Z over 64 steps moved away from 0 eight times in a row, {normalizer_drift.floor_nats} nats in all.",
      "It is over when log Z comes back towards 0.",
      "WATCH where a z-loss does not hold it, or beyond {normalizer_drift.limit_nats} nats, where 16-bit logits are coarse; information elsewhere."}},
    {Condition::kGradExplosion,
     {"The gradient norm jumped. It often leads a spike of the loss by a few steps.",
      "Its logarithm lies {grad_norm.deviations} deviations above the usual value and it is at least {grad_norm.factor} times that; or it is "
      "{grad_norm.large_factor} times the median, whatever the noise.",
      "It is over when the norm is back at its usual size.", "WATCH, early. If the loss follows, it becomes a loss spike."}},
    {Condition::kNonfinite,
     {"Values were NaN or infinite. They are counted one by one and kept out of every mean.",
      "Any row, gradient or reported value of a step that is not finite.",
      "It is over after {nonfinite.close_steps} finite steps.",
      "WATCH at first: loss scaling skips one to three steps by design. RESTART after {nonfinite.persist_steps} such steps in a row."}},
    {Condition::kLossCollapse,
     {"The loss or the gradient became 0, faster than anything learns: a broken mask, data that leaked, or a dead network.",
      "The loss fell from above {loss.collapse_from_nats} nats to below {loss.collapse_nats} within 16 steps, or the gradient norm was exactly 0 for "
      "{loss.zero_grad_steps} steps in a row.",
      "It is over when the loss is plausible again.", "RESTART once it is critical."}},
    {Condition::kIntegrity,
     {"Sums over ranks that must be equal are not: the code is wrong, or a device is sick. The loss can still look plausible.",
      "Exact comparisons of the ranks' own records, without any baseline. Kind shard alone needs one: the loss jumped from one step to the next, and a "
      "rank's probability moved away from its targets, with every sum right.",
      "It is over when the sums agree again; of kind shard, {loss.close_steps} steps after the last such step.",
      "WATCH at first. HALT once {integrity.halt_steps} of {integrity.window_steps} steps are broken: a restart would not help."}},
    {Condition::kAccounting,
     {"The numbers that the job divides by, or the loss that it logs, do not follow from its own records. Gradients may be scaled wrongly.",
      "The denominator against the unmasked tokens of all ranks; the logged loss against the loss and the objective of its steps.",
      "It is over when the numbers agree again.",
      "WATCH. HALT only if the policy says so: {accounting.halts}."}},
    {Condition::kRankMissing,
     {"Ranks that own a loss gave no record of a step in time. What is shown of that step is incomplete.",
      "Every rank with a loss has a record within the join timeout (flag --join_timeout).",
      "It is over when steps are complete again.", "WATCH: what is judged is incomplete. If the rank's process is gone, that is an incident of its own."}},
    {Condition::kRankOutlier,
     {"One data-parallel rank is far from its peers: a bad batch, or a sick device if it goes on.",
      "Its loss lies {rank_outlier.deviations} deviations of the spread over ranks and {rank_outlier.floor_nats} nats from theirs in "
      "{rank_outlier.steps} of the last 5 steps.",
      "It is over when the rank is among its peers again.", "WATCH while it is open. It never asks for a restart by itself."}},
    {Condition::kSlowdown,
     {"Steps take longer than they did.",
      "Steps take {slowdown.factor} times their usual time and {slowdown.floor_seconds} s more, for {slowdown.steps} steps.",
      "It is over when steps are as fast as before.", "WATCH while it is open. It never asks for a restart by itself."}},
    {Condition::kRepeatedBatch,
     {"The same targets came again: the data loader does not move on.",
      "The same fingerprint on {repeated_batch.steps} steps in a row.", "It is over with the first step that has other targets.",
      "WATCH while it is open. It never asks for a restart by itself."}},
    {Condition::kAttemptConflict,
     {"Two attempts of the run are alive at the same time and may write to the same checkpoints.",
      "Processes of two attempts live for {time.attempt_conflict_seconds} s.", "It is over when one of them has ended.", "WATCH while it is open."}},
    {Condition::kStall,
     {"The processes live, and no step comes. The summary says where they wait.",
      "No step for {time.fresh_seconds} s and {time.fresh_median_steps} usual step times, outside of declared phases.",
      "It is over with the next step.",
      "WATCH at first. RESTART after {time.stall_restart_seconds} s and {time.stall_restart_median_steps} usual step times."}},
    {Condition::kFrozen,
     {"A process holds its lock but gives no sign of life: stopped, swapped out, or starved.",
      "Its heartbeat is older than the flag --frozen_after.", "It is over with the next heartbeat.",
      "WATCH at first. RESTART like a stall, after {time.stall_restart_seconds} s and {time.stall_restart_median_steps} usual step times without a step."}},
    {Condition::kNoFirstStep,
     {"The job has begun and never made a step. Compiling and the first data can take long.",
      "No step {time.first_step_seconds} s after the job was first seen.", "It is over with the first step.", "WATCH while it is open."}},
    {Condition::kProducerLost,
     {"A training process is gone without saying goodbye: killed, crashed, or its machine died.",
      "Its lock is free and its ring was not closed.", "It is over with a new attempt.",
      "RESTART. HALT after {restart.no_progress_attempts} attempts in a row that got no further."}},
    {Condition::kRecordsLost,
     {"Records were overwritten or damaged before they were read. Totals stay right, single steps are missing.",
      "Gaps in the numbers of the records, and checksums.", "It is over when records come without gaps.", "Detectors miss those steps; the verdict stands."}},
}};

constexpr bool InOrder() {
  for (std::size_t i = 0; i < kRules.size(); ++i) {
    if (kRules[i].condition != static_cast<Condition>(i)) return false;
  }
  return true;
}
static_assert(InOrder(), "one entry for each condition, in their order");

}  // namespace

const ExplainedRule& RuleOf(Condition condition) {
  static constexpr ExplainedRule kUnknown = {"A condition that this version does not know.", "", "", ""};
  const auto index = static_cast<std::size_t>(condition);
  return index < kRules.size() ? kRules[index].rule : kUnknown;
}

std::string FillIn(std::string_view text, const state::PolicyView* policy) {
  std::string out;
  while (!text.empty()) {
    const std::size_t open = std::min(text.find('{'), text.size());
    out.append(text.substr(0, open));
    text.remove_prefix(open);
    const std::size_t close = text.find('}');
    if (text.empty() || close == std::string_view::npos) break;
    const std::string_view name = text.substr(1, close - 1);
    const std::size_t dot = std::min(name.find('.'), name.size());
    const auto value = policy == nullptr || dot == name.size() ? std::nullopt : policy->Value(name.substr(0, dot), name.substr(dot + 1));
    out += value ? absl::StrFormat("%.6g (%s)", *value, std::string(name)) : std::string(name);
    text.remove_prefix(close + 1);
  }
  out.append(text);
  return out;
}

}  // namespace lossgauge::api
