// What the judge of a run costs per joined step (target: under 2 us per step and rank), per evaluation and per save.
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/judge.h"

namespace lossgauge {
namespace {

constexpr int kSteps = 1024;
constexpr state::TimeNs kStart = 1'700'000'000'000'000'000;

// Noisy steps of a data-parallel job, joined beforehand: joining is not what is measured.
std::vector<state::JoinedStep> MakeSteps(std::uint32_t ranks) {
  std::vector<std::shared_ptr<const state::ProducerInfo>> producers;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto info = std::make_shared<state::ProducerInfo>();
    info->run = "bench";
    info->attempt = "1";
    info->layout.world_size = ranks;
    info->layout.rank = rank;
    info->layout.dp = {ranks, rank};
    info->layout.tp = info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
    info->layout.has_loss = 1;
    info->layout.gradient_reduction = LG_GRADIENT_REDUCTION_MEAN;
    info->layout.vocab_size = info->layout.shard_columns = 32000;
    producers.push_back(std::move(info));
  }
  std::vector<state::JoinedStep> steps;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<state::RankSample> samples;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t bits = lg_ring_mix(static_cast<std::uint64_t>(step) * 1024 + rank + 1);
      state::RankSample sample;
      sample.producer = producers[rank];
      lg_step_record& record = sample.record;
      record.step = step;
      record.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_DENOMINATOR | LG_HAS_GRAD_NORM | LG_HAS_REPORTED_LOSS | LG_HAS_MASS;
      record.tokens = record.unmasked_tokens = record.finite_tokens = record.target_hits = 4096;
      record.micro_batches = 1;
      record.denominator_min = record.denominator_max = 4096;
      record.nll_sum = lg_fixed128_from_double(4096 * (2.2 + 0.02 * static_cast<double>(bits >> 40) / (1 << 24)));
      record.probability_mass = lg_fixed128_from_int64(4096);
      record.grad_norm = 0.3 + 0.01 * static_cast<double>(step % 7);
      record.max_abs_logit = 20 + static_cast<double>(bits & 3);
      record.target_fingerprint = record.mask_fingerprint = bits;
      samples.push_back(std::move(sample));
    }
    state::JoinedStep joined = state::JoinSamples(std::move(samples));
    if (joined.summary.loss_nats && ranks > 0) {
      for (state::RankSample& sample : joined.samples) sample.record.reported_loss = *joined.summary.loss_nats;
    }
    joined.summary.step_seconds = 0.1;
    steps.push_back(std::move(joined));
  }
  return steps;
}

void Renumber(state::JoinedStep& step, std::int64_t number) {
  step.summary.step = number;
  step.summary.receive_time_ns = kStart + number * 100'000'000;
}

void BM_Step(benchmark::State& state) {
  const auto ranks = static_cast<std::uint32_t>(state.range(0));
  std::vector<state::JoinedStep> steps = MakeSteps(ranks);
  detect::Judge judge("bench", detect::DefaultPolicies().defaults);
  std::int64_t number = 0;
  for (auto _ : state) {
    state::JoinedStep& step = steps[static_cast<std::size_t>(number % kSteps)];
    Renumber(step, number++);
    judge.OnStep(step);
  }
  state.counters["ns_per_step_and_rank"] =
      benchmark::Counter(static_cast<double>(ranks) * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  if (!judge.Incidents().empty()) state.SkipWithError("the steps of the benchmark must be clean");
}
BENCHMARK(BM_Step)->Arg(1)->Arg(8)->Arg(64);

void BM_EvaluateAndSave(benchmark::State& state) {
  std::vector<state::JoinedStep> steps = MakeSteps(8);
  detect::Judge judge("bench", detect::DefaultPolicies().defaults);
  for (int i = 0; i < kSteps; ++i) {
    Renumber(steps[static_cast<std::size_t>(i)], i);
    judge.OnStep(steps[static_cast<std::size_t>(i)]);
  }
  const bool save = state.range(0) == 1;
  std::size_t bytes = 0;
  for (auto _ : state) {
    if (save) {
      bytes = judge.Save().size();
    } else {
      benchmark::DoNotOptimize(judge.Evaluate(kStart + kSteps * 100'000'000LL));
    }
  }
  if (save) state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_EvaluateAndSave)->ArgName("save")->Arg(0)->Arg(1);

}  // namespace
}  // namespace lossgauge

BENCHMARK_MAIN();
