// A small training job over a tensor-parallel group, step by step, with a fault at a step of choice; and what its records show by the rules of integrity
// (README.md of the server: mass, target_hits, agreement, coverage, exchange), put as short sentences.
#ifndef LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_JOB_H_
#define LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/ring_abi.h"
#include "tests/kernels/ring_telemetry.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {

// Logits of a model that has learnt something: the target leads by about 6 nats. The same for a step and seed on every machine, in bf16.
Problem TrainedRows(std::int64_t step, std::int64_t rows, std::int64_t vocab);

class TensorParallelJob {
 public:
  // Gauges know `declared`, which may be another layout than that of the calls; empty = the same.
  TensorParallelJob(std::vector<Shard> shards, std::int64_t vocab, std::vector<Shard> declared = {});

  struct Step {
    std::vector<lg_step_record> records;  // one a rank
    std::vector<int> codes;
    float loss = 0;  // of rank 0
    std::vector<float> losses;
    // kinds that are broken and the rank at fault, "mass: rank 2, exchange: rank 1"; "nothing" if none is
    std::string says;
    // (probability_mass - target_hits) / finite_tokens
    double Surplus(std::size_t rank) const;
  };
  // `spoil` changes what ranks hold before they begin, `tamper` what they receive.
  Step Run(const Problem& problem, const std::function<void(Ranks&)>& spoil = nullptr, const Ranks::Tamper& tamper = nullptr);
  // What the ranks sent at the step before: stale now.
  const std::vector<ExchangeMemory>& last_sent() const { return last_sent_; }
  std::int64_t step() const { return step_; }

 private:
  std::string Judge(const std::vector<lg_step_record>& records) const;

  std::vector<Shard> shards_, declared_;
  std::int64_t vocab_;
  std::int64_t step_ = 0;
  std::vector<std::unique_ptr<RingTelemetry>> gauges_;
  std::vector<ExchangeMemory> last_sent_;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_JOB_H_
