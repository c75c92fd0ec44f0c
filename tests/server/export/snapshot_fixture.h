// Small snapshots with numbers that can be checked by eye.
#ifndef LOSSGAUGE_TESTS_SERVER_EXPORT_SNAPSHOT_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_EXPORT_SNAPSHOT_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

inline constexpr state::TimeNs kNow = 1'700'000'000'000'000'000;
inline constexpr state::TimeNs kSecond = 1'000'000'000;

inline std::shared_ptr<state::ProducerInfo> Producer(const std::string& run, std::uint32_t rank, std::uint32_t world_size) {
  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = run;
  producer->attempt.assign(1, '1');  // gcc 12 sees an overlap in an assigned literal
  producer->layout.world_size = world_size;
  producer->layout.rank = rank;
  producer->layout.has_loss = 1;
  producer->layout.dp = {world_size, rank};
  producer->layout.tp = producer->layout.cp = producer->layout.pp = producer->layout.ep = {1, 0};
  producer->layout.vocab_size = producer->layout.shard_columns = 50257;
  producer->layout.gradient_reduction = LG_GRADIENT_REDUCTION_MEAN;
  return producer;
}

// 1,000 finite tokens of 2,250 nats, 4,000 target bytes, denominator 1,000.
inline lg_step_record Record(std::int64_t step) {
  lg_step_record record{};
  record.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD | LG_HAS_GRAD_NORM | LG_HAS_TARGET_BYTES |
                   LG_HAS_LEARNING_RATE | LG_HAS_MASS;
  record.step = step;
  record.tokens = 1024;
  record.unmasked_tokens = 1001;
  record.finite_tokens = 1000;
  record.nonfinite_rows = 1;
  record.nll_sum = lg_fixed128_from_int64(2250);
  record.scored_nll_sum = lg_fixed128_from_int64(2200);
  record.target_bytes = 4000;
  record.log_z_sum = lg_fixed128_from_int64(10500);
  record.log_z_max = 12.5;
  record.max_abs_logit = 31.25;
  record.logit_grad_sq_sum = lg_fixed128_from_int64(250000);
  record.denominator_min = 1000;
  record.denominator_max = 1000;
  record.probability_mass = lg_fixed128_from_int64(1000);
  record.target_hits = 1000;
  record.grad_norm = 0.75;
  record.learning_rate = 0.0003;
  return record;
}

inline state::RankTotals Totals(std::uint64_t steps) {
  state::RankTotals totals;
  totals.steps = steps;
  totals.tokens = 1024 * steps;
  totals.unmasked_tokens = 1001 * steps;
  totals.finite_tokens = 1000 * steps;
  totals.nonfinite_rows = 1;
  totals.nonfinite_steps = 1;
  totals.target_bytes = 4000 * steps;
  totals.correct_tokens = 300 * steps;
  totals.nll_sum = lg_fixed128_from_int64(static_cast<std::int64_t>(2250 * steps));
  totals.scored_nll_sum = lg_fixed128_from_int64(static_cast<std::int64_t>(2200 * steps));
  totals.records_lost[static_cast<std::size_t>(state::LossReason::kOverrun)] = 2;
  totals.records_read = steps - 2;
  return totals;
}

inline state::RankView RankOf(const std::string& run, std::uint32_t rank, std::uint32_t world_size) {
  state::RankView view;
  view.rank = rank;
  view.producer = Producer(run, rank, world_size);
  view.liveness.producer = view.producer;
  view.liveness.heartbeat_age_ns = kSecond / 2;
  view.liveness.time_ns = kNow;
  view.liveness.entered_step = 100;
  view.liveness.enqueued_step = 100;
  view.liveness.published_step = 99;
  state::RankSample sample;
  sample.producer = view.producer;
  sample.record = Record(99);
  view.last_sample = sample;
  view.step_seconds = 0.125;
  view.max_60s.loss_nats = 5.5;
  view.max_60s.grad_norm = 12;
  view.totals = Totals(100);
  view.last_record_time_ns = kNow - kSecond;
  return view;
}

inline std::shared_ptr<state::RunSnapshot> RunOf(const std::string& name, std::uint32_t ranks) {
  auto run = std::make_shared<state::RunSnapshot>();
  run->run = name;
  run->layout = Producer(name, 0, ranks)->layout;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) run->ranks.push_back(RankOf(name, rank, ranks));
  run->attempts.push_back({});
  auto step = std::make_shared<state::StepSummary>();
  step->step = 99;
  step->receive_time_ns = kNow - kSecond;
  step->loss_nats = 2.25;
  step->perplexity = 9.487735836358526;
  step->grad_norm = 0.75;
  step->tokens = 1024 * ranks;
  step->unmasked_tokens = 1001 * ranks;
  step->step_seconds = 0.125;
  run->last_step = step;
  run->max_60s.loss_nats = 5.5;
  run->totals = Totals(100);
  run->first_seen_ns = kNow - 100 * kSecond;
  run->verdict.action = state::Action::kContinue;
  run->verdict.reason_codes = {"fresh"};
  run->verdict.last_step = 99;
  run->verdict.evaluated_at_ns = kNow;
  run->verdict.valid_until_ns = kNow + 60 * kSecond;
  run->verdict_changes = 2;
  return run;
}

inline state::Incident OpenIncident(state::Condition condition, state::Severity severity, const std::string& kind = "") {
  state::Incident incident;
  incident.condition = condition;
  incident.severity = severity;
  incident.kind = kind;
  return incident;
}

inline state::Snapshot Shot(std::vector<std::shared_ptr<const state::RunSnapshot>> runs) {
  state::Snapshot snapshot;
  snapshot.time_ns = kNow;
  snapshot.start_time_ns = kNow - 3600 * kSecond;
  snapshot.runs = std::move(runs);
  return snapshot;
}

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_TESTS_SERVER_EXPORT_SNAPSHOT_FIXTURE_H_
