#include "tests/bench/fleet/job.h"

#include <algorithm>
#include <cmath>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::fleet {
namespace {

constexpr double kCorrelation = 0.3;  // of the batch's noise from step to step
constexpr double kZLossWeight = 1e-4;

double Uniform(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  const std::uint64_t bits = lg_ring_mix(lg_ring_mix(lg_ring_mix(seed) ^ a) ^ b);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

// Sum of four uniforms, of variance 1: near enough to a normal deviate, without its far tails, the same on every machine.
double Noise(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  double sum = 0;
  for (std::uint64_t i = 0; i < 4; ++i) sum += Uniform(seed + i, a, b) - 0.5;
  return sum * std::sqrt(3.0);
}

lg_fixed128 Sum(double per_token, std::uint64_t tokens) { return lg_fixed128_from_double(per_token * static_cast<double>(tokens)); }

}  // namespace

Job::Job(const JobOptions& options, std::vector<Fault> faults)
    : options_(options), faults_(std::move(faults)), shares_(options.ranks / options.tensor_parallel), totals_(options.ranks) {}

lg_layout Job::LayoutOf(std::uint32_t rank) const {
  const std::uint32_t tp = options_.tensor_parallel;
  lg_layout layout{};
  layout.world_size = options_.ranks;
  layout.rank = rank;
  layout.dp = {data_parallel(), rank / tp};
  layout.tp = {tp, rank % tp};
  layout.pp = layout.cp = layout.ep = {1, 0};
  layout.has_loss = 1;
  layout.gradient_reduction = LG_GRADIENT_REDUCTION_MEAN;
  layout.vocab_size = options_.vocab_size;
  layout.shard_offset = options_.vocab_size * layout.tp.index / tp;
  layout.shard_columns = options_.vocab_size * (layout.tp.index + 1) / tp - layout.shard_offset;
  return layout;
}

void Job::BeginStep(std::int64_t step) {
  step_ = step;
  active_.clear();
  for (const Fault& fault : faults_) {
    const bool over = fault.kind != FaultKind::kDies && !fault.Covers(step);
    if (IsOfRank(fault.kind) && !over && step >= fault.first) active_.push_back(&fault);
  }
  const auto s = static_cast<std::uint64_t>(step);
  batch_noise_ = kCorrelation * batch_noise_ + std::sqrt(1 - kCorrelation * kCorrelation) * options_.step_noise_nats * Noise(options_.seed, s, 1);
  const double level = options_.floor_nats + (options_.start_nats - options_.floor_nats) / (1 + 0.002 * static_cast<double>(step)) + batch_noise_;
  grad_norm_ = 0.4 * std::exp(0.08 * Noise(options_.seed, s, 2));
  truth_ = StepTruth();
  for (std::uint32_t dp = 0; dp < shares_.size(); ++dp) {
    Share& share = shares_[dp];
    const std::uint64_t place = (std::uint64_t{dp} << 8) + 3;
    share.tokens = options_.tokens - static_cast<std::uint64_t>(Uniform(options_.seed, s, place) * 0.1 * options_.tokens);
    share.loss = level + options_.rank_noise_nats * Noise(options_.seed, s, place + 1);
    share.log_z = 7 + 0.05 * Noise(options_.seed, s, place + 2);
    share.max_abs_logit = 24 + 0.8 * Noise(options_.seed, s, place + 3);
    for (const Fault* fault : active_) {
      if (fault->kind == FaultKind::kLoss && fault->at / options_.tensor_parallel == dp) share.loss += fault->amount;
    }
    const StepTruth part = ShareOf(dp);
    truth_.nll_nats += part.nll_nats;
    truth_.unmasked_tokens += part.unmasked_tokens;
    truth_.target_fingerprint += part.target_fingerprint;
  }
  denominator_ = static_cast<double>(truth_.unmasked_tokens) / data_parallel();
}

StepTruth Job::ShareOf(std::uint32_t data_parallel_rank) const {
  const Share& share = shares_[data_parallel_rank];
  return {share.loss * static_cast<double>(share.tokens), share.tokens, TargetFingerprint(data_parallel_rank)};
}

std::uint64_t Job::TargetFingerprint(std::uint32_t data_parallel_rank) const {
  return lg_ring_mix(options_.seed + static_cast<std::uint64_t>(step_) * 2) + data_parallel_rank;
}

bool Job::IsAlive(std::uint32_t rank) const {
  return std::none_of(active_.begin(), active_.end(), [rank](const Fault* fault) { return fault->kind == FaultKind::kDies && fault->at == rank; });
}

bool Job::Publishes(std::uint32_t rank) const {
  return IsAlive(rank) &&
         std::none_of(active_.begin(), active_.end(), [rank](const Fault* fault) { return fault->kind == FaultKind::kMissing && fault->at == rank; });
}

lg_step_record Job::RecordOf(std::uint32_t rank) {
  const std::uint32_t tp = options_.tensor_parallel;
  const std::uint32_t dp = rank / tp, index = rank % tp;
  const Share& share = shares_[dp];
  double loss = share.loss, denominator = denominator_;
  for (const Fault* fault : active_) {
    if (fault->at != rank) continue;
    if (fault->kind == FaultKind::kDenominator) denominator *= fault->amount;
    if (fault->kind == FaultKind::kAgreement) loss += fault->amount;
  }
  const auto s = static_cast<std::uint64_t>(step_);
  lg_step_record r{};
  r.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD | LG_HAS_MASS | LG_HAS_GRAD_NORM |
              LG_HAS_LEARNING_RATE | LG_HAS_TARGET_BYTES | LG_HAS_WORST_ROW | LG_HAS_WORST_LOGIT;
  r.step = step_;
  r.micro_batches = 1;
  r.tokens = options_.tokens;
  r.unmasked_tokens = r.finite_tokens = share.tokens;
  r.nll_sum = r.scored_nll_sum = Sum(loss, share.tokens);
  r.z_loss_sum = Sum(kZLossWeight * share.log_z * share.log_z, share.tokens);
  r.objective_sum = lg_fixed128_add(r.nll_sum, r.z_loss_sum);
  r.target_bytes = 4 * share.tokens;
  r.denominator_min = r.denominator_max = denominator;
  r.log_z_sum = Sum(share.log_z, share.tokens);
  r.log_z_sq_sum = Sum(share.log_z * share.log_z, share.tokens);
  r.log_z_max = share.log_z + 4;
  r.max_abs_logit = share.max_abs_logit;
  r.logit_grad_sq_sum = Sum(0.25 / tp, share.tokens);
  r.grad_norm = grad_norm_;
  // Each shard's part is exact, so that a group's parts add up to its tokens.
  r.probability_mass = lg_fixed128_from_int64(static_cast<std::int64_t>(share.tokens / tp + (index < share.tokens % tp ? 1 : 0)));
  r.target_hits = share.tokens / tp + (index < share.tokens % tp ? 1 : 0);
  r.correct_tokens = share.tokens * 45 / 100;
  r.mask_fingerprint = lg_ring_mix(options_.seed + s * 2 + 1) + dp;
  r.target_fingerprint = TargetFingerprint(dp);
  r.worst_row_nll = 5 * loss;
  r.worst_row_position = static_cast<std::int64_t>(s % options_.tokens);
  r.worst_row_target = 5;
  r.worst_logit_position = r.worst_row_position;
  r.worst_logit_column = LayoutOf(rank).shard_offset + 7;
  r.first_nonfinite_row = -1;
  r.learning_rate = 3e-4;
  if (rank == 0) {
    r.present |= LG_HAS_REPORTED_LOSS;
    r.reported_loss = truth_.loss_nats();
    r.reported_loss_dtype = LG_DTYPE_FP32;
    r.reported_loss_interval = 1;
  }
  const lg_step_record& before = totals_[rank];
  r.total_steps = before.total_steps + 1;
  r.total_tokens = before.total_tokens + r.tokens;
  r.total_unmasked_tokens = before.total_unmasked_tokens + r.unmasked_tokens;
  r.total_finite_tokens = before.total_finite_tokens + r.finite_tokens;
  r.total_target_bytes = before.total_target_bytes + r.target_bytes;
  r.total_nll_sum = lg_fixed128_add(before.total_nll_sum, r.nll_sum);
  r.total_scored_nll_sum = lg_fixed128_add(before.total_scored_nll_sum, r.scored_nll_sum);
  r.total_z_loss_sum = lg_fixed128_add(before.total_z_loss_sum, r.z_loss_sum);
  r.total_correct_tokens = before.total_correct_tokens + r.correct_tokens;
  totals_[rank] = r;
  return r;
}

}  // namespace lossgauge::fleet
