#include "server/detect/shard_watch.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/kinds.h"
#include "server/state/tensor_group.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kIntegrity, state::kKindShard};
// Shards in the wrong place cost each of their tokens many nats; the largest odd batch of a public log was 1.9 nats, and its targets lay elsewhere.
constexpr double kJumpNats = 0.5;
// An odd document moves less of a batch's probability than this.
constexpr double kLeastSurplus = 0.04;
constexpr double kDeviations = 6;
constexpr double kSlack = 0.02;             // of a share, between two steps of one run
constexpr std::int32_t kGradientLead = 8;   // steps by which the documented gradient norm rose first
constexpr double kForgetting = 1.0 / 64;
constexpr double kLeastVariance = 1e-4;     // of a token's part: a baseline of equal steps is no certainty
constexpr std::uint64_t kUsed = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_MASS;

bool IsUsable(const state::RankSample& sample) {
  return sample.producer->layout.has_loss != 0 && (sample.record.present & kUsed) == kUsed && sample.record.finite_tokens > 0;
}

}  // namespace

struct ShardWatch::RankNow {
  std::uint32_t rank = 0;
  std::int64_t columns = 0;
  const Shares* usual = nullptr;
  double tokens = 0;
  double mass = 0;  // share
  double hits = 0;
  double SurplusChange() const { return (mass - hits) - (usual->mass - usual->hits); }
  double SurplusDeviations() const { return std::fabs(SurplusChange()) * std::sqrt(tokens / std::max(usual->surplus_variance, kLeastVariance)); }
  bool HasUsualTargets() const {
    const double change = std::fabs(hits - usual->hits);
    return change <= kSlack || change <= kDeviations * std::sqrt(std::max(usual->hits_variance, kLeastVariance) / tokens);
  }
  bool HasMass(double share) const {
    return std::fabs(mass - share) <= kSlack + kDeviations * std::sqrt(std::max(usual->surplus_variance, kLeastVariance) / tokens);
  }
};

struct ShardWatch::Suspicion {
  RankNow worst;
  std::optional<std::uint32_t> other;  // whose shard it seems to have, and the other way round
  bool can_name = true;
};

// The group whose rank stands out most; false if none does.
bool ShardWatch::Look(const StepSignals& signals, const Policy& policy, Suspicion* found) const {
  std::map<state::TensorGroup, std::vector<RankNow>> groups;
  const state::JoinedStep& joined = *signals.joined;
  for (const state::RankSample& sample : joined.samples) {
    if (!IsUsable(sample)) continue;
    const lg_layout& layout = sample.producer->layout;
    const auto known = ranks_.find(layout.rank);
    if (known == ranks_.end() || known->second.steps < policy.loss_baseline_steps) continue;
    const double tokens = static_cast<double>(sample.record.finite_tokens);
    groups[state::TensorGroupOf(layout)].push_back({layout.rank, layout.shard_columns, &known->second, tokens,
                                                    lg_fixed128_to_double(sample.record.probability_mass) / tokens,
                                                    static_cast<double>(sample.record.target_hits) / tokens});
  }
  bool any = false;
  for (const auto& [key, group] : groups) {
    if (group.size() != joined.layout.tp.size) continue;
    if (!std::all_of(group.begin(), group.end(), [](const RankNow& one) { return one.HasUsualTargets(); })) continue;
    const auto worst = std::max_element(group.begin(), group.end(), [](const RankNow& a, const RankNow& b) {
      return std::fabs(a.SurplusChange()) < std::fabs(b.SurplusChange());
    });
    if (std::fabs(worst->SurplusChange()) < kLeastSurplus || worst->SurplusDeviations() < kDeviations) continue;
    if (any && std::fabs(worst->SurplusChange()) <= std::fabs(found->worst.SurplusChange())) continue;
    any = true;
    *found = {*worst, std::nullopt, group.size() > 2};
    for (const RankNow& other : group) {
      if (other.rank == worst->rank || other.columns != worst->columns) continue;
      const bool changed_places = worst->HasMass(other.usual->mass) && other.HasMass(worst->usual->mass);
      const bool others_stay = std::all_of(group.begin(), group.end(), [&](const RankNow& one) {
        return one.rank == worst->rank || one.rank == other.rank || one.HasMass(one.usual->mass);
      });
      if (changed_places && others_stay) found->other = other.rank;
    }
  }
  return any;
}

void ShardWatch::Learn(const StepSignals& signals) {
  for (const state::RankSample& sample : signals.joined->samples) {
    if (!IsUsable(sample)) continue;
    const auto [it, inserted] = ranks_.try_emplace(sample.producer->layout.rank);
    if (ranks_.size() > kMostRanks) {
      ranks_.erase(std::prev(ranks_.end()));
      continue;
    }
    Shares& usual = it->second;
    const double tokens = static_cast<double>(sample.record.finite_tokens);
    const double mass = lg_fixed128_to_double(sample.record.probability_mass) / tokens;
    const double hits = static_cast<double>(sample.record.target_hits) / tokens;
    if (!std::isfinite(mass)) continue;
    if (usual.steps < 1'000'000) ++usual.steps;
    const double weight = std::max(kForgetting, 1.0 / usual.steps);
    const double surplus_change = (mass - hits) - (usual.mass - usual.hits), hits_change = hits - usual.hits;
    if (usual.steps > 1) {
      usual.surplus_variance += weight * (surplus_change * surplus_change * tokens - usual.surplus_variance);
      usual.hits_variance += weight * (hits_change * hits_change * tokens - usual.hits_variance);
    }
    usual.mass += weight * (mass - usual.mass);
    usual.hits += weight * hits_change;
  }
}

void ShardWatch::OnAttempt() {
  streak_ = Streak();
  steps_since_gradient_ = 1 << 20;
  loss_was_high_ = false;
}

void ShardWatch::OnStep(const StepSignals& signals, const LossJump& jump, const Policy& policy, IncidentBook& book) {
  const bool gradient_led = steps_since_gradient_ <= kGradientLead;
  const bool loss_was_high = std::exchange(loss_was_high_, jump.high);
  steps_since_gradient_ = signals.grad_high && !jump.high ? 0 : std::min(steps_since_gradient_ + 1, 1 << 20);
  if (signals.joined->layout.tp.size < 2 || !signals.joined->summary.missing_ranks.empty()) return;
  if (!jump.high && streak_.bad_steps == 0) return Learn(signals);
  Suspicion found;
  const bool may_begin = !gradient_led && !loss_was_high;  // a healthy step, and then this one
  const bool bad = jump.high && jump.nats >= kJumpNats && (streak_.bad_steps > 0 || may_begin) && Look(signals, policy, &found);
  if (!bad && streak_.bad_steps == 0) return;
  streak_.Push(bad, signals.moment.step);
  if (!bad) {
    if (streak_.clean < policy.loss_close_steps) return;
    book.Resolve(kSlot, signals.moment, streak_.last_bad_step - streak_.onset_step + 1);
    streak_ = Streak();
    return;
  }
  const RankNow& worst = found.worst;
  Finding finding;
  finding.condition = state::Condition::kIntegrity;
  finding.kind = std::string(state::kKindShard);
  finding.severity = BrokenSteps(policy) >= policy.integrity_halt_steps ? state::Severity::kCritical : state::Severity::kWarning;
  finding.onset_step = finding.peak_step = streak_.onset_step;
  if (found.can_name || found.other) finding.rank = worst.rank;
  const std::string who = found.other         ? absl::StrFormat("Ranks %d and %d seem to hold each other's shard", std::min(worst.rank, *found.other),
                                                                std::max(worst.rank, *found.other))
                          : found.can_name ? absl::StrFormat("Rank %d seems to hold a shard that is not its own, or of another layer", worst.rank)
                                           : std::string("One of two ranks seems to hold a shard that is not its own, or of another layer");
  finding.summary = absl::StrFormat("%s: the loss jumped by %.2f nats, and rank %d has %+.3f more probability than targets where it had %+.3f, with "
                                    "every sum right; %d %s since step %d",
                                    who, jump.nats, worst.rank, worst.mass - worst.hits, worst.usual->mass - worst.usual->hits, streak_.bad_steps,
                                    streak_.bad_steps == 1 ? "step" : "steps", streak_.onset_step);
  finding.evidence = {{"loss_jump", jump.nats, "nats", ""},
                      {"surplus", worst.mass - worst.hits, "", absl::StrFormat("of rank %d: probability less targets, a token", worst.rank)},
                      {"usual_surplus", worst.usual->mass - worst.usual->hits, "", ""},
                      {"deviations", worst.SurplusDeviations(), "", ""}};
  book.Report(kSlot, std::move(finding), signals.moment);
}

void ShardWatch::Save(StateWriter& out) const {
  streak_.Save(out);
  out.Put(steps_since_gradient_);
  out.Put<std::uint8_t>(loss_was_high_);
  out.Put(static_cast<std::uint16_t>(ranks_.size()));
  for (const auto& [rank, usual] : ranks_) {
    out.Put(rank);
    out.Put(usual.steps);
    for (const double value : {usual.mass, usual.hits, usual.surplus_variance, usual.hits_variance}) out.Put(value);
  }
}

void ShardWatch::Restore(StateReader& in) {
  streak_.Restore(in);
  steps_since_gradient_ = in.GetIn<std::int32_t>(0, 1 << 20);
  loss_was_high_ = in.GetBool();
  for (int left = in.GetIn<std::uint16_t>(0, kMostRanks); left > 0 && in.ok(); --left) {
    Shares& usual = ranks_[in.Get<std::uint32_t>()];
    usual.steps = in.GetIn<std::int32_t>(0, 1'000'000);
    for (double* value : {&usual.mass, &usual.hits, &usual.surplus_variance, &usual.hits_variance}) *value = in.GetFinite();
  }
}

}  // namespace lossgauge::detect
