// A tensor-parallel group inside one process that shares a linear problem: the head's rows cut into shards, a thread for each rank, and an all-gather between
// them that a test may tamper with, for each receiver and chunk by itself.
#ifndef LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_LINEAR_RANKS_H_
#define LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_LINEAR_RANKS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/linear_backend.h"
#include "tests/kernels/linear_check.h"
#include "tests/kernels/vocab_parallel_ranks.h"

namespace lossgauge::test {

// Values of a dtype as bytes.
struct Tensor {
  int dtype = LG_FP32;
  std::vector<unsigned char> bytes;

  Tensor() = default;
  Tensor(int type, std::int64_t count) : dtype(type), bytes(static_cast<std::size_t>(count * (type == LG_FP32 ? 4 : 2)), 0x5a) {}
  Tensor(int type, const std::vector<double>& values);
  std::vector<double> Values() const;
};

// One rank's tensors, arguments and outcome.
struct LinearRankCall {
  Tensor hidden, weight, bias, grad_hidden, grad_weight, grad_bias;
  std::vector<std::int64_t> targets;
  std::vector<float> losses, log_z, upstream;
  float loss = RankCall::kUnwritten, grad_scale = 1;
  double denominator = 1;
  std::vector<std::int64_t> positions;
  lg_linear_cross_entropy_args linear;
  lg_vocab_parallel_linear_args args;
  std::int64_t exchanges = 0;
  int code = -1;
  std::string message;

  LinearRankCall(const LinearProblem& problem, const Shard& shard, std::int64_t vocab, int ranks, int rank);
  LinearRankCall(const LinearRankCall&) = delete;
  // With inputs where they are now: a test may have put others there.
  void Run();
};

class LinearRanks {
 public:
  // Changes what `receiver` got for its `chunk`-th exchange.
  using Tamper = std::function<void(int receiver, std::int64_t chunk, ExchangeMemory& gathered)>;

  LinearRanks(const LinearProblem& problem, std::vector<Shard> shards);

  std::vector<std::unique_ptr<LinearRankCall>> calls;

  // All ranks at once. A rank that ends leaves the others an error in their exchange, as a collective's timeout would.
  void Run(const Tamper& tamper = nullptr);

  // All ranks returned LG_OK and gave the same bits of losses, log_z and loss.
  void ExpectOneOutcome() const;
  // That outcome, the summed gradient of the hidden states and the shards' gradients against float64.
  void ExpectLikeOracle() const;
  // What ranks give together.
  std::vector<double> HiddenGradient() const;
  std::vector<double> HeadGradient(bool bias) const;

 private:
  struct Seat {
    LinearRanks* ranks;
    int rank;
  };
  static int Exchange(void* seat, const void* contribution, void* gathered, std::int64_t bytes, void* stream);
  int Gather(int rank, const void* contribution, void* gathered, std::int64_t bytes, void* stream);

  LinearProblem problem_;
  std::vector<Shard> shards_;
  Tamper tamper_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int here_ = 0, taken_ = 0;
  bool someone_left_ = false;
  std::vector<ExchangeMemory> sent_;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_LINEAR_RANKS_H_
