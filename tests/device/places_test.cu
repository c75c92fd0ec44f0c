// Where the largest logit and the worst row of a step are: the lowest position of equals, whatever order the CTAs of a launch come to their ends in.
#include "tests/device/device_gauge_test.h"

namespace lossgauge {
namespace {

class Places : public DeviceGaugeTest, public testing::WithParamInterface<std::int64_t> {
 protected:
  // Row i's largest logit rises with i; from `kFirst` on, rows are the same to the last bit: all begin at a multiple of 128 bytes.
  static constexpr int kTokens = 2000, kFirst = 1200, kLargest = 77;
};

TEST_P(Places, OfEqualsTheLowestPosition) {
  const std::int64_t columns = GetParam();
  const std::size_t count = static_cast<std::size_t>(kTokens) * static_cast<std::size_t>(columns);
  std::vector<float> logits(count, 0.f);
  std::vector<std::int64_t> targets(kTokens);
  for (int i = 0; i < kTokens; ++i) {
    const int rank = i < kFirst ? i : kFirst;
    logits[static_cast<std::size_t>(i) * columns + kLargest] = 2.f + static_cast<float>(rank) / 256.f;
    targets[i] = kLargest + 1;  // worst where the largest logit is
  }
  float *device_logits = nullptr, *grad = nullptr;
  std::int64_t* device_targets = nullptr;
  ASSERT_CUDA(cudaMalloc(&device_logits, count * 4));
  ASSERT_CUDA(cudaMalloc(&grad, count * 4));
  ASSERT_CUDA(cudaMalloc(&device_targets, kTokens * 8));
  ASSERT_CUDA(cudaMemcpy(device_logits, logits.data(), count * 4, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaMemcpy(device_targets, targets.data(), kTokens * 8, cudaMemcpyHostToDevice));
  lg_cross_entropy_args args = Args();
  args.logits = device_logits;
  args.rows = kTokens;
  args.columns = columns;
  args.targets = device_targets;
  args.losses = nullptr;
  args.grad_logits = grad;
  args.position_base = 1'000'000;
  // Two CTAs have to meet within nanoseconds for an exchange in halves to show.
  const int rounds = columns <= 1024 ? 20'000 : 200;
  for (int round = 0; round < rounds; ++round) {
    ASSERT_LG(lg_cross_entropy(&args));
    Publish();
    if (round % 400 != 399 && round != rounds - 1) continue;
    const std::vector<lg_step_record> steps = Steps();  // the latest that the ring holds
    ASSERT_GE(steps.size(), static_cast<std::size_t>(round < 400 ? round % 400 + 1 : 400));
    for (const lg_step_record& step : steps) {
      ASSERT_EQ(step.worst_logit_position, 1'000'000 + kFirst) << "step " << step.step;
      ASSERT_EQ(step.worst_logit_column, kLargest) << "step " << step.step;
      ASSERT_EQ(step.worst_row_position, 1'000'000 + kFirst) << "step " << step.step;
      ASSERT_EQ(step.worst_row_target, kLargest + 1) << "step " << step.step;
    }
  }
  for (void* p : {static_cast<void*>(device_logits), static_cast<void*>(grad), static_cast<void*>(device_targets)}) cudaFree(p);
}

// Of each kernel: rows in registers, rows in stages, a ring of one CTA, of two, of four, rows read twice.
INSTANTIATE_TEST_SUITE_P(Widths, Places, testing::Values(128, 1024, 6144, 20480, 51200, 102400, 204800));

}  // namespace
}  // namespace lossgauge
