// The vocabulary-parallel loss on the CPU as a backend: every problem of the suite is cut into shards of uneven width, one for each rank of a group, and what
// the ranks give back is put together again. What must be equal on all ranks is compared with ==. LOSSGAUGE_TEST_SHARDS ranks (default 3), of which the last
// ones may have nothing but padding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/kernels/c_abi_backend.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/vocab_parallel_memory.h"
#ifdef LOSSGAUGE_TEST_ON_DEVICE
#include "tests/kernels/cuda_exchange_memory.h"
#include "tests/kernels/cuda_placement.h"
#endif

namespace lossgauge::test {
namespace {

int Ranks() {
  const char* wish = std::getenv("LOSSGAUGE_TEST_SHARDS");
  return wish != nullptr ? std::max(1, std::atoi(wish)) : 3;
}

bool Equal(lg_fixed128 a, lg_fixed128 b) { return lg_fixed128_compare(a, b) == 0; }

// The gauges of all ranks; published, one record of the whole group.
class ShardedTelemetry final : public Telemetry {
 public:
  explicit ShardedTelemetry(std::vector<std::unique_ptr<Telemetry>> ranks) : ranks_(std::move(ranks)) {}
  lg_gauge* gauge() override { return ranks_[0]->gauge(); }
  Telemetry* rank(int index) { return ranks_[static_cast<std::size_t>(index)].get(); }
  lg_step_record Publish() override {
    lg_step_record whole = ranks_[0]->Publish();
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) {
      const lg_step_record part = ranks_[rank]->Publish();
      ExpectAgreement(whole, part);
      whole.probability_mass = lg_fixed128_add(whole.probability_mass, part.probability_mass);
      whole.logit_grad_sq_sum = lg_fixed128_add(whole.logit_grad_sq_sum, part.logit_grad_sq_sum);
      whole.target_hits += part.target_hits;
      whole.mass_error_rows += part.mass_error_rows;
      whole.exchange_bad_rows += part.exchange_bad_rows;
      whole.nonfinite_grad_rows = std::max(whole.nonfinite_grad_rows, part.nonfinite_grad_rows);
      whole.clamped_rows = std::max(whole.clamped_rows, part.clamped_rows);
      const auto place = [](const lg_step_record& r) { return std::pair(-r.max_abs_logit, std::pair(r.worst_logit_position, r.worst_logit_column)); };
      if (place(part) < place(whole)) {
        whole.max_abs_logit = part.max_abs_logit;
        whole.worst_logit_position = part.worst_logit_position;
        whole.worst_logit_column = part.worst_logit_column;
      }
    }
    EXPECT_EQ(whole.exchange_bad_rows, 0u);
    return whole;
  }

 private:
  static void ExpectAgreement(const lg_step_record& a, const lg_step_record& b) {
    EXPECT_EQ(a.present, b.present);
    EXPECT_EQ(a.micro_batches, b.micro_batches);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.unmasked_tokens, b.unmasked_tokens);
    EXPECT_EQ(a.finite_tokens, b.finite_tokens);
    EXPECT_EQ(a.nonfinite_rows, b.nonfinite_rows);
    EXPECT_EQ(a.first_nonfinite_row, b.first_nonfinite_row);
    EXPECT_EQ(a.bad_targets, b.bad_targets);
    EXPECT_EQ(a.correct_tokens, b.correct_tokens);
    EXPECT_EQ(a.mask_fingerprint, b.mask_fingerprint);
    EXPECT_EQ(a.target_fingerprint, b.target_fingerprint);
    EXPECT_EQ(a.target_bytes, b.target_bytes);
    EXPECT_EQ(a.log_z_max, b.log_z_max);
    EXPECT_EQ(a.worst_row_nll, b.worst_row_nll);
    EXPECT_EQ(a.worst_row_position, b.worst_row_position);
    EXPECT_EQ(a.worst_row_target, b.worst_row_target);
    EXPECT_TRUE(Equal(a.nll_sum, b.nll_sum) && Equal(a.objective_sum, b.objective_sum) && Equal(a.z_loss_sum, b.z_loss_sum) &&
                Equal(a.scored_nll_sum, b.scored_nll_sum) && Equal(a.log_z_sum, b.log_z_sum) && Equal(a.log_z_sq_sum, b.log_z_sq_sum));
  }

  std::vector<std::unique_ptr<Telemetry>> ranks_;
};

// All ranks of the group on one device, or on the CPU.
#ifdef LOSSGAUGE_TEST_ON_DEVICE
using Placement = CudaPlacement;
using GatheredMemory = CudaExchangeMemory;
[[maybe_unused]] const bool kSkips = SkipsWithoutDevice::Install();
#else
using Placement = CAbiBackend;
using GatheredMemory = ExchangeMemory;
#endif

class ShardedBackend final : public Placement {
 public:
  std::string Name() const override { return (IsDevice() ? "cuda/" : "cpu/") + std::to_string(Ranks()) + " shards/" + lg_cpu_variant(); }

  bool OrdersNearLossesExactly() const override { return false; }

  std::unique_ptr<Telemetry> OpenTelemetry(const TelemetryOptions& options) override {
    std::vector<std::unique_ptr<Telemetry>> ranks;
    for (int rank = 0; rank < Ranks(); ++rank) ranks.push_back(Placement::OpenTelemetry(options));
    return std::make_unique<ShardedTelemetry>(std::move(ranks));
  }

  Outcome Run(const Problem& problem) override {
    const std::int64_t bytes = ContributionBytes(problem.rows);
    gathered_ = GatheredMemory(static_cast<std::size_t>(bytes) * static_cast<std::size_t>(Ranks()));
    for (const bool finish : {false, true}) {
      finishes_ = finish;
      std::vector<Outcome> parts;
      for (rank_ = 0; rank_ < Ranks(); ++rank_) {
        parts.push_back(Placement::Run(PartOf(problem)));
        if (parts.back().code != LG_OK) return parts.back();
      }
      if (finish) return Stitched(problem, parts);
    }
    return {};
  }

 protected:
  int Call(const Problem& problem, const lg_cross_entropy_args& args) override {
    lg_vocab_parallel_args sharded;
    lg_vocab_parallel_args_init(&sharded);
    sharded.loss = args;
    sharded.group_size = Ranks();
    sharded.group_index = rank_;
    sharded.vocab_size = vocab_;
    sharded.shard_offset = std::min(begin_, vocab_);
    sharded.shard_columns = std::min(end_, vocab_) - sharded.shard_offset;
    sharded.step = 17;
    unsigned char* own = gathered_.data() + rank_ * ContributionBytes(problem.rows);
    if (!finishes_) return lg_vocab_parallel_begin(&sharded, own);
    if (problem.call == Problem::Call::kBackward) sharded.loss.gauge = nullptr;
    return lg_vocab_parallel_finish(&sharded, gathered_.data());
  }

 private:
  // Columns [Cut(r), Cut(r + 1)) are rank r's: widths differ, and early ranks have few.
  static std::int64_t Cut(std::int64_t columns, std::int64_t rank) {
    const std::int64_t ranks = Ranks();
    if (rank <= 0 || rank >= ranks) return rank <= 0 ? 0 : columns;
    const std::int64_t even = columns * rank / ranks, before = columns * (rank - 1) / ranks;
    return even - (rank % 2 == 1 ? std::min(columns / (3 * ranks) + 1, even - before) : 0);
  }

  Problem PartOf(const Problem& problem) {
    begin_ = Cut(problem.columns, rank_);
    end_ = Cut(problem.columns, rank_ + 1);
    vocab_ = problem.vocab_size != 0 ? problem.vocab_size : problem.columns;
    Problem part = problem;
    part.columns = std::max<std::int64_t>(1, end_ - begin_);  // a rank without columns has one of padding
    part.vocab_size = 0;
    if (problem.row_stride != 0) part.row_stride = problem.row_stride - problem.columns + part.columns;
    if (problem.grad_row_stride != 0) part.grad_row_stride = problem.grad_row_stride - problem.columns + part.columns;
    part.logits.assign(static_cast<std::size_t>(part.rows * part.columns), std::nan(""));
    for (std::int64_t i = 0; i < problem.rows; ++i) {
      const auto from = problem.logits.begin() + i * problem.columns;
      std::copy(from + begin_, from + end_, part.logits.begin() + i * part.columns);
    }
    part.telemetry = finishes_ && problem.telemetry != nullptr ? static_cast<ShardedTelemetry*>(problem.telemetry)->rank(rank_) : nullptr;
    return part;
  }

  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }

  static Outcome Stitched(const Problem& problem, const std::vector<Outcome>& parts) {
    Outcome whole = parts[0];
    const auto bytes = static_cast<std::size_t>(BytesOf(problem.dtype));
    const auto row_bytes = static_cast<std::size_t>(problem.columns) * bytes;
    for (auto* to : {&whole.grad_bytes, &whole.logits_bytes, &whole.logits_bytes_before}) to->assign(row_bytes * static_cast<std::size_t>(problem.rows), 0);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const Outcome& part = parts[rank];
      EXPECT_TRUE(SameBits(part.losses, whole.losses) && SameBits(part.log_z, whole.log_z) && SameBits({part.loss}, {whole.loss}))
          << "rank " << rank << " has other bits than rank 0";
      whole.gaps_unharmed = whole.gaps_unharmed && part.gaps_unharmed;
      const std::int64_t begin = Cut(problem.columns, static_cast<std::int64_t>(rank));
      const std::int64_t end = Cut(problem.columns, static_cast<std::int64_t>(rank) + 1);
      const auto width = static_cast<std::size_t>(std::max<std::int64_t>(1, end - begin)) * bytes;
      const auto copy = [&](const std::vector<unsigned char>& from, std::vector<unsigned char>* to) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(problem.rows); ++i) {
          std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(i * width), static_cast<std::size_t>(end - begin) * bytes,
                      to->begin() + static_cast<std::ptrdiff_t>(i * row_bytes + static_cast<std::size_t>(begin) * bytes));
        }
      };
      copy(part.grad_bytes, &whole.grad_bytes);
      copy(part.logits_bytes, &whole.logits_bytes);
      copy(part.logits_bytes_before, &whole.logits_bytes_before);
    }
    whole.grad.clear();
    for (std::size_t at = 0; at < whole.grad_bytes.size(); at += bytes) whole.grad.push_back(Load(problem.dtype, whole.grad_bytes.data() + at));
    return whole;
  }

  int rank_ = 0;
  bool finishes_ = false;
  std::int64_t begin_ = 0, end_ = 0, vocab_ = 0;
  GatheredMemory gathered_;
};

}  // namespace

Backend& TestedBackend() {
  static ShardedBackend backend;
  return backend;
}

}  // namespace lossgauge::test
