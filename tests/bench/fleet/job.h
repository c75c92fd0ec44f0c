// A training job of many ranks without the job: each rank's records, with realistic, noisy losses and token counts, and sums over ranks that add up.
//
// Everything follows from (seed, step, rank), so that a test can work out every sum, and two runs give the same bytes. Layout: rank = dp * tp + tp's
// index. Not thread-safe.
#ifndef LOSSGAUGE_TESTS_BENCH_FLEET_JOB_H_
#define LOSSGAUGE_TESTS_BENCH_FLEET_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/ring_abi.h"
#include "tests/bench/fleet/faults.h"

namespace lossgauge::fleet {

struct JobOptions {
  std::string run = "fleet";
  std::string attempt = "1";
  std::uint32_t ranks = 64;  // a multiple of tensor_parallel
  std::uint32_t tensor_parallel = 8;
  std::uint32_t tokens = 4096;  // of a data-parallel rank and step, before masking
  std::int64_t vocab_size = 128'256;
  double start_nats = 2.6;  // the loss falls slowly from here towards floor_nats
  double floor_nats = 2.1;
  double step_noise_nats = 0.01;  // of the whole batch, correlated from step to step
  double rank_noise_nats = 0.03;  // of a data-parallel rank's share of the batch
  std::uint64_t seed = 1;
};

// What a step must come out as, over all ranks that published; from float64 sums over data-parallel ranks.
struct StepTruth {
  double nll_nats = 0;
  std::uint64_t unmasked_tokens = 0;
  std::uint64_t target_fingerprint = 0;
  double loss_nats() const { return nll_nats / static_cast<double>(unmasked_tokens); }
};

class Job {
 public:
  Job(const JobOptions& options, std::vector<Fault> faults);

  const JobOptions& options() const { return options_; }
  std::uint32_t data_parallel() const { return options_.ranks / options_.tensor_parallel; }
  lg_layout LayoutOf(std::uint32_t rank) const;

  // Computes step `step`, one after the other from 0 on; the records of this step can then be had until the next call.
  void BeginStep(std::int64_t step);
  const StepTruth& truth() const { return truth_; }
  // What a data-parallel rank adds to it.
  StepTruth ShareOf(std::uint32_t data_parallel_rank) const;
  // True if the rank publishes in this step.
  bool Publishes(std::uint32_t rank) const;
  bool IsAlive(std::uint32_t rank) const;
  // With totals, without sequence, checksum and times. Each rank once a step, in any order.
  lg_step_record RecordOf(std::uint32_t rank);
  // Publications of the rank so far.
  std::uint64_t published(std::uint32_t rank) const { return totals_[rank].total_steps; }

 private:
  struct Share {  // of a data-parallel rank
    double loss = 0;
    double log_z = 0;
    double max_abs_logit = 0;
    std::uint64_t tokens = 0;
  };

  std::uint64_t TargetFingerprint(std::uint32_t data_parallel_rank) const;

  const JobOptions options_;
  const std::vector<Fault> faults_;
  std::int64_t step_ = -1;
  double batch_noise_ = 0;
  std::vector<Share> shares_;
  double denominator_ = 0;
  double grad_norm_ = 0;
  StepTruth truth_;
  std::vector<lg_step_record> totals_;  // of each rank: its last record
  std::vector<const Fault*> active_;    // of ranks, in this step
};

}  // namespace lossgauge::fleet

#endif  // LOSSGAUGE_TESTS_BENCH_FLEET_JOB_H_
