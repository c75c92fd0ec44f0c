// A tensor-parallel group inside one process: a problem cut into shards, the two calls of every rank, and between them an all-gather that a test may tamper with,
// for each receiver by itself.
#ifndef LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_RANKS_H_
#define LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_RANKS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/host/vocab_parallel_contribution.h"
#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/backend.h"
#include "tests/kernels/vocab_parallel_memory.h"

namespace lossgauge::test {

// The real columns of a rank, and how many of padding follow them in its logits.
struct Shard {
  std::int64_t offset, columns, padding = 0;
};

// `widths` real columns each, one shard behind the other.
std::vector<Shard> ShardsOf(const std::vector<std::int64_t>& widths);
// As even as can be.
std::vector<Shard> EvenShards(std::int64_t vocab, int ranks);

// One rank's tensors, arguments and outcome. Outputs begin as `kUnwritten`.
struct RankCall {
  static constexpr float kUnwritten = -7;

  std::vector<unsigned char> logits;  // in the problem's dtype; padding is NaN
  std::vector<unsigned char> grad;    // every byte 0x5a before
  std::vector<std::int64_t> targets;
  std::vector<float> upstream;
  std::vector<float> losses, log_z;
  float loss = kUnwritten;
  lg_vocab_parallel_args args;
  ExchangeMemory contribution;
  int code = -1;  // of begin if that failed, else of finish
  std::string message;

  RankCall(const Problem& problem, const Shard& shard, std::int64_t vocab, int ranks, int rank);
  RankCall(const RankCall&) = delete;
  RankCall(RankCall&&) = default;  // vectors keep their memory, so args stay right but for `loss`, which Begin and Finish set

  void SetLogit(std::int64_t row, std::int64_t column, double value);  // of the shard's own columns
  double Logit(std::int64_t row, std::int64_t column) const;
  double Gradient(std::int64_t row, std::int64_t column) const;
  bool Unwritten() const;  // no output has been touched

  void Begin();
  void Finish(const ExchangeMemory& gathered);
};

class Ranks {
 public:
  // Changes what `receiver` got: contributions of equal size, in rank order.
  using Tamper = std::function<void(int receiver, ExchangeMemory& gathered)>;

  // The problem's columns, cut. Only what concerns the loss is taken of the problem: strides and telemetry are not.
  Ranks(const Problem& problem, const std::vector<Shard>& shards);

  std::vector<RankCall> calls;

  void Begin();
  void Finish(const Tamper& tamper = nullptr);
  void Run(const Tamper& tamper = nullptr) {
    Begin();
    Finish(tamper);
  }

  // The gradient of all ranks' real columns, [rows, vocab].
  std::vector<double> Gradient() const;
  // All ranks returned LG_OK and gave the same bits of losses, log_z and loss.
  void ExpectOneOutcome() const;
  // That outcome and the gradient against float64.
  void ExpectLikeOracle() const;

 private:
  Problem problem_;
  std::vector<Shard> shards_;
};

// Parts of a contribution of `rows` rows, as it lies in gathered memory.
lg_shard_header* HeaderIn(ExchangeMemory& gathered, std::int64_t rows, int sender);
lg_shard_row* RowIn(ExchangeMemory& gathered, std::int64_t rows, int sender, std::int64_t row);
// Tags again what has been changed, as a rank would that believes in it.
void TagAgain(ExchangeMemory& gathered, std::int64_t rows, int sender);

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_VOCAB_PARALLEL_RANKS_H_
