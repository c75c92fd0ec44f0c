#include "tests/kernels/vocab_parallel_job.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/chance.h"

namespace lossgauge::test {
namespace {

double Sum(const std::vector<lg_step_record>& records, lg_fixed128 lg_step_record::*field) {
  lg_fixed128 sum{};
  for (const lg_step_record& record : records) sum = lg_fixed128_add(sum, record.*field);
  return lg_fixed128_to_double(sum);
}

bool Agree(const lg_step_record& a, const lg_step_record& b) {
  return a.unmasked_tokens == b.unmasked_tokens && a.nonfinite_rows == b.nonfinite_rows && lg_fixed128_compare(a.nll_sum, b.nll_sum) == 0 &&
         lg_fixed128_compare(a.log_z_sum, b.log_z_sum) == 0 && a.mask_fingerprint == b.mask_fingerprint && a.target_fingerprint == b.target_fingerprint;
}

}  // namespace

Problem TrainedRows(std::int64_t step, std::int64_t rows, std::int64_t vocab) {
  Chance chance(static_cast<std::uint64_t>(1000 + step));
  Problem problem;
  problem.dtype = LG_BF16;
  problem.rows = rows;
  problem.columns = vocab;
  for (std::int64_t i = 0; i < rows; ++i) {
    problem.targets.push_back(chance.Below(vocab));
    for (std::int64_t j = 0; j < vocab; ++j) problem.logits.push_back(chance.Normal() + (j == problem.targets.back() ? 6 : 0));
  }
  return problem;
}

TensorParallelJob::TensorParallelJob(std::vector<Shard> shards, std::int64_t vocab, std::vector<Shard> declared)
    : shards_(std::move(shards)), declared_(declared.empty() ? shards_ : std::move(declared)), vocab_(vocab) {
  for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
    TelemetryOptions options;
    options.vocab_size = vocab;
    options.ranks = static_cast<std::int32_t>(shards_.size());
    options.rank = static_cast<std::int32_t>(rank);
    options.shard_offset = declared_[rank].offset;
    options.shard_columns = declared_[rank].columns;
    gauges_.push_back(std::make_unique<RingTelemetry>(options));
  }
}

double TensorParallelJob::Step::Surplus(std::size_t rank) const {
  const lg_step_record& record = records[rank];
  return (lg_fixed128_to_double(record.probability_mass) - static_cast<double>(record.target_hits)) / static_cast<double>(record.finite_tokens);
}

TensorParallelJob::Step TensorParallelJob::Run(const Problem& problem, const std::function<void(Ranks&)>& spoil, const Ranks::Tamper& tamper) {
  Ranks ranks(problem, shards_);
  for (std::size_t rank = 0; rank < ranks.calls.size(); ++rank) {
    ranks.calls[rank].args.step = step_;
    ranks.calls[rank].args.loss.gauge = gauges_[rank]->gauge();
  }
  if (spoil) spoil(ranks);
  ranks.Run(tamper);
  Step step;
  last_sent_.clear();
  for (std::size_t rank = 0; rank < ranks.calls.size(); ++rank) {
    step.codes.push_back(ranks.calls[rank].code);
    step.records.push_back(gauges_[rank]->Publish());
    last_sent_.push_back(std::move(ranks.calls[rank].contribution));
  }
  step.loss = ranks.calls[0].loss;
  step.losses = ranks.calls[0].losses;
  step.says = Judge(step.records);
  ++step_;
  return step;
}

std::string TensorParallelJob::Judge(const std::vector<lg_step_record>& records) const {
  std::string says;
  const auto say = [&says](const std::string& kind, std::optional<std::size_t> rank) {
    says += (says.empty() ? "" : ", ") + kind + (rank ? ": rank " + std::to_string(*rank) : "");
  };
  std::vector<Shard> sorted = declared_;
  std::sort(sorted.begin(), sorted.end(), [](const Shard& a, const Shard& b) { return a.offset < b.offset; });
  std::int64_t next = 0;
  bool tiled = true;
  for (const Shard& shard : sorted) tiled = tiled && shard.offset == next, next += shard.columns;
  if (!tiled || next != vocab_) say("coverage", std::nullopt);
  const auto worst = std::max_element(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.exchange_bad_rows < b.exchange_bad_rows; });
  if (worst->exchange_bad_rows != 0) {
    say("exchange", worst->exchange_bad_sender);
    return says;  // the sums lack its rows
  }
  const auto finite = static_cast<double>(records[0].finite_tokens);
  std::optional<std::size_t> off;
  int ranks_off = 0;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].mass_error_rows != 0) off = rank, ++ranks_off;
  }
  if (std::fabs(Sum(records, &lg_step_record::probability_mass) - finite) > 0.25 + 2e-6 * finite || ranks_off != 0) {
    say("mass", ranks_off == 1 ? off : std::nullopt);
  }
  std::uint64_t hits = 0;
  for (const lg_step_record& record : records) hits += record.target_hits;
  if (hits != records[0].finite_tokens) say("target_hits", std::nullopt);
  std::optional<std::size_t> alone;
  bool agree = true;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const auto like = std::count_if(records.begin(), records.end(), [&](const lg_step_record& other) { return Agree(records[rank], other); });
    agree = agree && like == static_cast<std::ptrdiff_t>(records.size());
    if (like == 1 && records.size() >= 3) alone = rank;
  }
  if (!agree) say("agreement", alone);
  return says.empty() ? "nothing" : says;
}

}  // namespace lossgauge::test
