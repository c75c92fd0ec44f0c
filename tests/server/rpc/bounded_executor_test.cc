#include "server/rpc/bounded_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>

namespace lossgauge::rpc {
namespace {

TEST(BoundedExecutor, RefusesWhatItCannotQueueAndRunsWhatItTook) {
  std::promise<void> started;
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::atomic<int> ran{0};
  {
    BoundedExecutor executor(1, 2);
    ASSERT_TRUE(executor.TryPost([&] {
      started.set_value();
      gone.wait();
      ++ran;
    }));
    started.get_future().wait();
    EXPECT_TRUE(executor.TryPost([&] { ++ran; }));
    EXPECT_TRUE(executor.TryPost([&] { ++ran; }));
    EXPECT_FALSE(executor.TryPost([&] { ++ran; }));
    go.set_value();
  }
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace lossgauge::rpc
