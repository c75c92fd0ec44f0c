// Thousands of long rows through the vocabulary-parallel kernels, the ranks of a group one behind the other on one GPU and the exchange made by the test: every
// CTA goes through batch after batch, whole stretches of rows are masked, shards are views of one tensor and begin at any byte. Against float64 on the device.
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/host/vocab_parallel_contribution.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "tests/device/vocab_parallel_rows.cuh"
#include "tests/kernels/ring_telemetry.h"

namespace lossgauge::test {
namespace {

#define ASSERT_CUDA(x) ASSERT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_LG(x) ASSERT_EQ((x), LG_OK) << lg_last_error()

template <class T>
class Memory {
 public:
  explicit Memory(Int count) : count_(static_cast<std::size_t>(count)) { EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(T)), cudaSuccess); }
  ~Memory() { (void)cudaFree(data_); }
  Memory(const Memory&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::size_t bytes() const { return count_ * sizeof(T); }
  void Put(const std::vector<T>& from) { EXPECT_EQ(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess); }
  std::vector<T> Take() const {
    std::vector<T> to(count_);
    EXPECT_EQ(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return to;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

bool Near(double got, double right, double scale) { return std::isnan(right) ? std::isnan(got) : got == right || std::fabs(got - right) <= 2e-6 * scale; }
double ValueOf(lg_fixed128 x) { return lg_fixed128_to_double(x); }

template <class T>
struct Format;
template <>
struct Format<float> {
  static constexpr double kUlp = 0x1p-23, kSmallest = 0x1p-149;
};
template <>
struct Format<__nv_bfloat16> {
  static constexpr double kUlp = 0x1p-7, kSmallest = 0x1p-133;
};
template <>
struct Format<__half> {
  static constexpr double kUlp = 0x1p-10, kSmallest = 0x1p-24;
};

template <class T>
class Job {
 public:
  explicit Job(const Shape& shape)
      : s_(shape),
        source_(s_.rows * s_.stride()),
        work_(s_.rows * s_.stride()),
        targets_(s_.rows),
        cuts_(s_.ranks() + 1),
        right_(s_.rows),
        found_(1),
        losses_(s_.rows),
        log_z_(s_.rows),
        loss_(1),
        contribution_(Contribution()),
        gathered_(s_.ranks() * contribution_) {
    std::vector<Int> targets;
    for (Int i = 0; i < s_.rows; ++i) targets.push_back(TargetOf(i));
    targets_.Put(targets);
    cuts_.Put(s_.cuts);
    Fill<<<1024, kThreads>>>(source_.get(), s_.rows, s_.vocab(), s_.stride(), targets_.get(), cuts_.get(), s_.ranks(), s_.strange);
    Judge<<<static_cast<unsigned>(s_.rows), kThreads>>>(source_.get(), s_.vocab(), s_.stride(), targets_.get(), s_.smoothing, s_.z_weight, right_.get());
    rows_ = right_.Take();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    for (const RightRow& row : rows_) unmasked_ += row.state != kLeftOut;
  }

  // Two micro-batches of the same rows, with one gauge a rank or without. What the last one left.
  void Run(bool signals) {
    const Gauges gauges = signals ? OpenGauges() : Gauges();
    for (Int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      ASSERT_NO_FATAL_FAILURE(Begin(micro_batch));
      ASSERT_NO_FATAL_FAILURE(Finish(micro_batch, gauges));
    }
    ExpectOutcome();
    if (signals) ExpectRecords(gauges);
  }
  // One call. The contributions of (sender, row) are not what was sent.
  void RunSpoilt(const std::vector<std::pair<int, Int>>& contributions, int worst_sender) {
    const Gauges gauges = OpenGauges();
    ASSERT_NO_FATAL_FAILURE(Begin(0));
    std::set<Int> spoilt;
    for (const auto& [sender, row] : contributions) {
      spoilt.insert(row);
      ASSERT_CUDA(cudaMemset(gathered_.get() + sender * contribution_ + LG_SHARD_HEADER_BYTES + row * LG_SHARD_ROW_BYTES, 0xa5, 8));
    }
    ASSERT_NO_FATAL_FAILURE(Finish(0, gauges));
    const std::vector<float> losses = losses_.Take();
    const std::vector<T> grad = work_.Take();
    std::uint64_t finite = 0;
    for (Int i = 0; i < s_.rows; ++i) {
      const bool is_spoilt = spoilt.count(i) != 0;
      finite += rows_[static_cast<std::size_t>(i)].state == kFinite && !is_spoilt;
      EXPECT_EQ(std::isnan(losses[static_cast<std::size_t>(i)]), is_spoilt) << "row " << i;
      for (const Int column : {Int{0}, s_.vocab() - 1}) {
        EXPECT_EQ(std::isnan(static_cast<float>(grad[static_cast<std::size_t>(i * s_.stride() + column)])), is_spoilt) << "row " << i << ", column " << column;
      }
    }
    for (const auto& gauge : gauges) {
      const lg_step_record record = gauge->Publish();
      EXPECT_EQ(record.exchange_bad_rows, contributions.size());
      EXPECT_EQ(record.exchange_bad_sender, static_cast<std::uint64_t>(worst_sender));
      EXPECT_EQ(record.finite_tokens, finite);
      EXPECT_EQ(record.nonfinite_rows, 0u);
    }
  }

  Findings found() const { return found_host_; }
  const std::vector<float>& losses() const { return losses_host_; }

 private:
  using Gauges = std::vector<std::unique_ptr<RingTelemetry>>;
  Gauges OpenGauges() const {
    Gauges gauges;
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      const Int first = s_.cuts[static_cast<std::size_t>(rank)];
      gauges.push_back(
          std::make_unique<RingTelemetry>(TelemetryOptions{s_.vocab(), {}, s_.ranks(), rank, first, s_.cuts[static_cast<std::size_t>(rank) + 1] - first},
                                          [] { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }));
    }
    return gauges;
  }
  void Begin(Int micro_batch) {
    if (s_.in_place)
      ASSERT_CUDA(cudaMemcpy(work_.get(), source_.get(), work_.bytes(), cudaMemcpyDeviceToDevice));
    else
      ASSERT_CUDA(cudaMemset(work_.get(), kGapByte, work_.bytes()));
    ASSERT_CUDA(cudaMemset(gathered_.get(), 0xff, gathered_.bytes()));
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      const lg_vocab_parallel_args args = ArgsOf(rank, micro_batch, nullptr);
      ASSERT_LG(lg_vocab_parallel_begin(&args, gathered_.get() + rank * contribution_));
    }
  }
  void Finish(Int micro_batch, const Gauges& gauges) {
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      const lg_vocab_parallel_args args = ArgsOf(rank, micro_batch, gauges.empty() ? nullptr : gauges[static_cast<std::size_t>(rank)]->gauge());
      ASSERT_LG(lg_vocab_parallel_finish(&args, gathered_.get()));
    }
    ASSERT_CUDA(cudaDeviceSynchronize());
  }
  Int Contribution() const {
    Int bytes = 0;
    EXPECT_EQ(lg_vocab_parallel_contribution_bytes(s_.rows, &bytes), LG_OK);
    return bytes;
  }
  Int TargetOf(Int row) const {
    if (row % kPeriod == 40 && row != 0 && s_.mask != Mask::kAllButOne) return s_.vocab() + 3;
    const bool masked = s_.mask == Mask::kEveryThird  ? row % 3 == 1
                        : s_.mask == Mask::kStretch   ? row > 100 && row < s_.rows - 300
                        : s_.mask == Mask::kAllButOne ? row != 0
                        : s_.mask == Mask::kByChance  ? row != 0 && Mix(static_cast<unsigned long long>(row)) % 2 == 0
                                                      : false;
    return masked ? -100 : static_cast<Int>(Mix(static_cast<unsigned long long>(row) + 77) % static_cast<unsigned long long>(s_.vocab()));
  }
  lg_vocab_parallel_args ArgsOf(int rank, Int micro_batch, lg_gauge* gauge) const {
    lg_vocab_parallel_args args;
    lg_vocab_parallel_args_init(&args);
    const Int first = s_.cuts[static_cast<std::size_t>(rank)];
    args.group_size = s_.ranks();
    args.group_index = rank;
    args.vocab_size = s_.vocab();
    args.shard_offset = first;
    args.step = 3;
    args.micro_batch = micro_batch;
    args.loss.logits = (s_.in_place ? work_.get() : source_.get()) + first;
    args.loss.logits_dtype = s_.dtype;
    args.loss.rows = s_.rows;
    args.loss.columns = s_.cuts[static_cast<std::size_t>(rank) + 1] - first;
    args.loss.row_stride = args.loss.grad_row_stride = s_.stride();
    args.loss.targets = targets_.get();
    args.loss.label_smoothing = s_.smoothing;
    args.loss.z_loss_weight = s_.z_weight;
    args.loss.losses = losses_.get();
    args.loss.log_z = log_z_.get();
    args.loss.loss = loss_.get();
    args.loss.grad_logits = work_.get() + first;
    args.loss.gauge = gauge;
    return args;
  }

  void ExpectOutcome() {
    ASSERT_CUDA(cudaMemset(found_.get(), 0, found_.bytes()));
    Compare<<<static_cast<unsigned>(s_.rows), kThreads>>>(source_.get(), work_.get(), s_.vocab(), s_.stride(), s_.rows, targets_.get(), right_.get(),
                                                          s_.smoothing, s_.z_weight, static_cast<double>(unmasked_), Format<T>::kUlp, Format<T>::kSmallest,
                                                          cuts_.get(), s_.ranks(), s_.in_place, found_.get());
    found_host_ = found_.Take()[0];
    EXPECT_EQ(found_host_.wrong, 0u) << "elements of the gradient, the last one in row " << found_host_.first_wrong / s_.stride() << ", column "
                                     << found_host_.first_wrong % s_.stride();
    EXPECT_EQ(found_host_.harmed_gaps, 0u);
    losses_host_ = losses_.Take();
    const std::vector<float> log_z = log_z_.Take();
    double sum = 0;
    int complaints = 0;
    for (Int i = 0; i < s_.rows && complaints < 3; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const RightRow& right = rows_[at];
      sum += right.objective;
      const bool fits = Near(static_cast<double>(losses_host_[at]), right.objective, std::fabs(right.objective) + 1) &&
                        Near(static_cast<double>(log_z[at]), right.log_z, std::fabs(right.log_z) + 1);
      complaints += !fits;
      EXPECT_TRUE(fits) << "row " << i << ": loss " << losses_host_[at] << ", right " << right.objective << "; log Z " << log_z[at] << ", right "
                        << right.log_z;
    }
    // A row of infinite loss spoils the sum as a NaN does.
    const double loss = static_cast<double>(loss_.Take()[0]), mean = sum / static_cast<double>(unmasked_);
    if (complaints == 0) EXPECT_TRUE(std::isfinite(mean) ? Near(loss, mean, std::fabs(mean)) : !std::isfinite(loss)) << loss << ", right " << mean;
  }

  void ExpectRecords(const Gauges& gauges) {
    std::uint64_t finite = 0, nonfinite = 0, left_out_of_range = 0, correct = 0, hits = 0;
    double nll = 0, mass = 0;
    for (Int i = 0; i < s_.rows; ++i) {
      const RightRow& row = rows_[static_cast<std::size_t>(i)];
      finite += row.state == kFinite;
      correct += row.correct;
      nonfinite += row.state == kNan || row.state == kInfinite;
      left_out_of_range += TargetOf(i) >= s_.vocab();
      if (row.state == kFinite) nll += row.nll;
    }
    for (int rank = 0; rank < s_.ranks(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      const lg_step_record record = gauges[static_cast<std::size_t>(rank)]->Publish();
      EXPECT_EQ(record.micro_batches, 2u);
      EXPECT_EQ(record.tokens, static_cast<std::uint64_t>(2 * s_.rows));
      EXPECT_EQ(record.unmasked_tokens, static_cast<std::uint64_t>(2 * unmasked_));
      EXPECT_EQ(record.finite_tokens, 2 * finite);
      EXPECT_EQ(record.nonfinite_rows, 2 * nonfinite);
      EXPECT_EQ(record.bad_targets, 2 * left_out_of_range);
      EXPECT_EQ(record.correct_tokens, 2 * correct);
      EXPECT_EQ(record.exchange_bad_rows, 0u);
      EXPECT_EQ(record.mass_error_rows, 0u);
      EXPECT_EQ(record.nonfinite_grad_rows, 0u);
      EXPECT_TRUE(Near(ValueOf(record.nll_sum), 2 * nll, 2 * nll)) << ValueOf(record.nll_sum) << ", right " << 2 * nll;
      const double squares = 2 * found_host_.squares[rank];
      EXPECT_TRUE(Near(ValueOf(record.logit_grad_sq_sum), squares, 10 * squares)) << ValueOf(record.logit_grad_sq_sum) << ", right " << squares;
      // Of many equal ones.
      EXPECT_EQ(static_cast<double>(record.max_abs_logit), -kPlanted);
      EXPECT_EQ(record.worst_logit_position, 0);
      EXPECT_EQ(record.worst_logit_column, s_.cuts[static_cast<std::size_t>(rank)] + 7);
      hits += record.target_hits;
      mass += ValueOf(record.probability_mass);
    }
    EXPECT_EQ(hits, 2 * finite);
    EXPECT_TRUE(Near(mass, 2 * static_cast<double>(finite), 2 * static_cast<double>(finite))) << mass;
  }

  const Shape s_;
  Memory<T> source_, work_;
  Memory<Int> targets_, cuts_;
  Memory<RightRow> right_;
  Memory<Findings> found_;
  Memory<float> losses_, log_z_, loss_;
  const Int contribution_;
  Memory<unsigned char> gathered_;
  std::vector<RightRow> rows_;
  Findings found_host_{};
  std::vector<float> losses_host_;
  Int unmasked_ = 0;
};

class VocabParallelRows : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
  void TearDown() override { EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for the job to find"; }
};

class VocabParallelRowsOf : public VocabParallelRows, public testing::WithParamInterface<Shape> {};

template <class T>
void RunThrice(const Shape& shape) {
  Job<T> job(shape);
  ASSERT_NO_FATAL_FAILURE(job.Run(true));
  const Findings first = job.found();
  const std::vector<float> losses = job.losses();
  ASSERT_NO_FATAL_FAILURE(job.Run(true));
  EXPECT_EQ(job.found().hash, first.hash) << "other bits in the second run";
  ASSERT_NO_FATAL_FAILURE(job.Run(false));
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_TRUE(job.losses()[i] == losses[i] || std::isnan(losses[i])) << "row " << i << " without a gauge";
}

TEST_P(VocabParallelRowsOf, AreThoseOfFloat64WithTheSameBitsInEveryRun) {
  const Shape& shape = GetParam();
  if (shape.dtype == LG_BF16)
    RunThrice<__nv_bfloat16>(shape);
  else if (shape.dtype == LG_FP16)
    RunThrice<__half>(shape);
  else
    RunThrice<float>(shape);
}

TEST_F(VocabParallelRows, WhatIsNotProvenIsCountedWithItsSenderWhicheverBatchItIsIn) {
  Job<__nv_bfloat16> job({"", LG_BF16, 4500, {0, 17001, 34003, 51000}, 0, Mask::kEveryThird, false, false, 0, 0});
  job.RunSpoilt({{1, 3}, {1, 4400}, {2, 9}, {2, 2000}, {2, 4443}}, 2);
  job.RunSpoilt({{0, 0}}, 0);
}

// Shards of more than 32 KB a row stream through rings of slots: of one slot and a little, of several, of more than there are.
INSTANTIATE_TEST_SUITE_P(Shapes, VocabParallelRowsOf,
                         testing::Values(Shape{"One", LG_BF16, 1, {0, 17001, 34003}, 0, Mask::kNone, true, false, 0, 0},
                                         Shape{"Five", LG_BF16, 5, {0, 17001, 34003}, 3, Mask::kNone, false, false, 0, 0},
                                         Shape{"OneLessThanMultiprocessors", LG_FP16, 131, {0, 40001, 57003, 99999}, 0, Mask::kNone, true, true, 0.1, 0},
                                         Shape{"OneMoreThanMultiprocessors", LG_FP32, 133, {0, 16385}, 1, Mask::kNone, true, true, 0, 1e-3},
                                         Shape{"LongerThanAllSlots", LG_BF16, 600, {0, 131072}, 0, Mask::kByChance, true, false, 0, 0},
                                         Shape{"EveryThirdMasked", LG_BF16, 9000, {0, 17001, 34003}, 5, Mask::kEveryThird, true, true, 0, 0},
                                         Shape{"AStretchMasked", LG_BF16, 9000, {0, 16500}, 0, Mask::kStretch, false, false, 0, 0},
                                         Shape{"AllButOneMasked", LG_BF16, 9000, {0, 17000}, 0, Mask::kAllButOne, true, false, 0, 0},
                                         Shape{"HalfMasked", LG_FP16, 4301, {0, 20000, 36500, 60001}, 0, Mask::kByChance, true, true, 0.1, 1e-3},
                                         Shape{"AllOfThem", LG_FP32, 4700, {0, 8200, 16401}, 2, Mask::kNone, false, true, 0, 0}),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace lossgauge::test
