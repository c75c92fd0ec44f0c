// cudaStreamPerThread is one handle for a stream of every thread: a publish waits for the launches of all of them.
#include <thread>

#include "tests/device/device_gauge_test.h"
#include "tests/device/other_work.cuh"

namespace lossgauge {
namespace {

class ThreadStreams : public DeviceGaugeTest {
 protected:
  // From a thread of its own, behind `cycles` of other work.
  void LossOfAnotherThread(long long cycles) const {
    std::thread([this, cycles] {
      LaunchOtherWork(1, 0, cycles, cudaStreamPerThread);
      lg_cross_entropy_args args = Args();
      args.stream = cudaStreamPerThread;
      args.losses = args.loss = nullptr;  // one launch may run beside another's
      args.grad_logits = nullptr;
      EXPECT_EQ(lg_cross_entropy(&args), LG_OK) << lg_last_error();
    }).join();
  }
  std::uint64_t TokensOf(std::size_t steps) {
    const auto all = Steps();
    EXPECT_EQ(all.size(), steps);
    return all.empty() ? 0 : all.back().tokens;
  }
  static constexpr long long kLong = 100'000'000;  // some 50 ms
};

TEST_F(ThreadStreams, APublishOnAnotherStreamWaitsForThoseOfAllThreads) {
  LossOfAnotherThread(0);
  Publish();
  ASSERT_EQ(TokensOf(1), 6u);
  LossOfAnotherThread(kLong);
  LossOfAnotherThread(0);
  Publish();
  EXPECT_EQ(TokensOf(2), 12u);
}

TEST_F(ThreadStreams, APublishOnAThreadsOwnWaitsForThoseOfOthers) {
  ASSERT_LG(lg_gauge_publish(gauge_, cudaStreamPerThread));  // the handle that later launches use is that of the last publish
  LossOfAnotherThread(kLong);
  LossOfAnotherThread(0);
  ASSERT_LG(lg_gauge_publish(gauge_, cudaStreamPerThread));
  EXPECT_EQ(TokensOf(2), 12u);
  LossOfAnotherThread(kLong);
  Publish();
  EXPECT_EQ(TokensOf(3), 6u);
}

}  // namespace
}  // namespace lossgauge
