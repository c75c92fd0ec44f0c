#include "tests/server/detect/judge_fixture.h"

#include <cmath>
#include <numbers>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::testing {

double Noise::Uniform() {
  state_ += 0x9e3779b97f4a7c15u;
  return (static_cast<double>(lg_ring_mix(state_) >> 11) + 0.5) * 0x1p-53;
}

double Noise::Next() {
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  const double gaussian = radius * std::cos(2 * std::numbers::pi * Uniform());
  value_ = rho_ * value_ + std::sqrt(1 - rho_ * rho_) * gaussian;
  return sd_ * value_;
}

JudgeScript::JudgeScript(detect::Policy policy_in, std::uint32_t data_parallel, std::uint32_t tensor_parallel)
    : policy(std::move(policy_in)), dp(data_parallel), tp(tensor_parallel), judge(std::make_unique<detect::Judge>("run", policy)) {}

std::shared_ptr<const state::ProducerInfo> JudgeScript::Producer(std::uint32_t rank) const {
  auto& slot = producers_[{attempt, rank}];
  if (slot == nullptr) {
    auto info = std::make_shared<state::ProducerInfo>();
    info->segment = {{rank + 1, std::hash<std::string>()(attempt)}};
    info->run = "run";
    info->attempt = attempt;
    info->attempt_start_ns = attempt_start_ns;
    info->layout.world_size = dp * tp;
    info->layout.rank = rank;
    info->layout.dp = {dp, rank / tp};
    info->layout.tp = {tp, rank % tp};
    info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
    info->layout.has_loss = 1;
    info->layout.gradient_reduction = gradient_reduction;
    info->layout.vocab_size = 1000 * tp;
    info->layout.shard_offset = 1000 * (rank % tp);
    info->layout.shard_columns = 1000;
    info->block_names[0] = "train";
    slot = std::move(info);
  }
  return slot;
}

state::JoinedStep JudgeScript::MakeStep(const StepValues& values) const {
  std::vector<state::RankSample> samples;
  for (std::uint32_t rank = 0; rank < dp * tp; ++rank) {
    if (std::find(values.missing_ranks.begin(), values.missing_ranks.end(), rank) != values.missing_ranks.end()) continue;
    state::RankSample sample;
    sample.producer = Producer(rank);
    sample.receive_time_ns = now_ns;
    lg_step_record& record = sample.record;
    record.step = next_step;
    record.boot_ns = now_ns - 1'600'000'000 * kSecond;
    record.micro_batches = 1;
    record.tokens = record.unmasked_tokens = tokens;
    record.nonfinite_rows = values.nonfinite_rows;
    record.finite_tokens = tokens - values.nonfinite_rows;
    record.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_DENOMINATOR;
    if (values.loss) record.nll_sum = lg_fixed128_from_double(*values.loss * static_cast<double>(record.finite_tokens));
    if (!values.loss) record.finite_tokens = 0;
    record.target_hits = rank % tp == 0 ? record.finite_tokens : 0;
    record.log_z_sum = lg_fixed128_from_int64(12 * static_cast<std::int64_t>(record.finite_tokens));
    record.log_z_max = 12;
    record.max_abs_logit = values.max_abs_logit.value_or(20);
    record.worst_logit_position = 3;
    record.worst_logit_column = 77;
    record.worst_row_nll = 9;
    record.worst_row_position = 5;
    record.worst_row_target = 42;
    record.present |= LG_HAS_WORST_LOGIT | LG_HAS_WORST_ROW;
    record.target_fingerprint = record.mask_fingerprint = lg_ring_mix(static_cast<std::uint64_t>(next_step) * 64 + rank / tp + 1);
    record.denominator_min = record.denominator_max =
        static_cast<double>(tokens * (gradient_reduction == LG_GRADIENT_REDUCTION_SUM ? dp : 1));
    if (values.grad_norm) {
      record.present |= LG_HAS_GRAD_NORM;
      record.grad_norm = *values.grad_norm;
    }
    if (values.learning_rate) {
      record.present |= LG_HAS_LEARNING_RATE;
      record.learning_rate = *values.learning_rate;
    }
    if (values.reported_loss && rank == 0) {
      record.present |= LG_HAS_REPORTED_LOSS;
      record.reported_loss = *values.reported_loss;
      record.reported_loss_dtype = LG_DTYPE_FP32;
      record.reported_loss_interval = 1;
    }
    if (values.edit) values.edit(rank, record);
    samples.push_back(std::move(sample));
  }
  state::JoinedStep joined = state::JoinSamples(std::move(samples));
  joined.summary.missing_ranks = values.missing_ranks;
  joined.summary.complete = values.missing_ranks.empty();
  joined.summary.step_seconds = static_cast<double>(step_ns) * 1e-9;
  joined.summary.receive_time_ns = now_ns;
  return joined;
}

void JudgeScript::Step(const StepValues& values) {
  now_ns += step_ns;
  judge->OnStep(MakeStep(values));
  last_step_ = next_step++;
  last_step_time_ns_ = now_ns;
}

void JudgeScript::Steps(int count, double level, double sd) {
  for (int i = 0; i < count; ++i) {
    const double loss = level + sd * noise.Next();
    Step({.loss = loss, .grad_norm = 0.24 * std::exp(0.08 * noise.Next())});
  }
}

void JudgeScript::NewAttempt(const std::string& name, std::int64_t step) {
  attempt = name;
  attempt_start_ns = now_ns;
  next_step = step;
  last_step_ = -1;
  last_step_time_ns_ = 0;
}

void JudgeScript::Checkpoint(std::int64_t step, const std::string& path) {
  state::ProducerEvent event;
  event.producer = Producer(0);
  event.kind = LG_EVENT_CHECKPOINT;
  event.step = step;
  event.text = path;
  event.receive_time_ns = now_ns;
  judge->OnEvent(event);
}

void JudgeScript::Look(const std::function<void(std::uint32_t, state::LivenessReport&)>& edit) {
  presence.now_ns = now_ns;
  presence.newest_attempt = attempt;
  presence.first_seen_ns = attempt_start_ns;
  presence.last_step.reset();
  if (last_step_ >= 0) presence.last_step = last_step_;
  presence.last_step_time_ns = last_step_time_ns_;
  presence.producers.clear();
  presence.expected_ranks.clear();
  for (std::uint32_t rank = 0; rank < dp * tp; ++rank) {
    state::LivenessReport report;
    report.producer = Producer(rank);
    report.enqueued_step = report.published_step = report.entered_step = last_step_;
    report.last_call = LG_CALL_PUBLISH;
    report.time_ns = now_ns;
    if (edit) edit(rank, report);
    presence.producers.push_back(std::move(report));
    presence.expected_ranks.push_back(rank);
  }
  judge->OnPresence(presence);
}

void JudgeScript::WaitLooking(double seconds, const std::function<void(std::uint32_t, state::LivenessReport&)>& edit) {
  for (double waited = 0; waited < seconds; waited += 5) {
    Wait(std::min(5.0, seconds - waited));
    Look(edit);
  }
}

std::optional<state::Incident> JudgeScript::FindOpen(Condition condition, const std::string& kind) const {
  for (const state::Incident& incident : judge->Incidents()) {
    if (incident.open && incident.condition == condition && (kind == "*" || incident.kind == kind)) return incident;
  }
  return std::nullopt;
}

std::uint64_t JudgeScript::Opened(Condition condition, const std::string& kind) const {
  std::uint64_t opened = 0;
  for (const auto& entry : judge->counters().incidents) {
    if (entry.condition == condition && (kind == "*" || entry.kind == kind)) opened += entry.opened;
  }
  return opened;
}

std::uint64_t JudgeScript::OpenedInAll() const {
  std::uint64_t opened = 0;
  for (const auto& entry : judge->counters().incidents) opened += entry.opened;
  return opened;
}

void JudgeScript::Restart() {
  const std::string bytes = judge->Save();
  judge = std::make_unique<detect::Judge>("run", policy);
  const absl::Status status = judge->Restore(bytes);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

}  // namespace lossgauge::testing
