#include "server/transport/client_limiter.h"

#include <gtest/gtest.h>

#include <vector>

namespace lossgauge::transport {
namespace {

class ClientLimiterTest : public ::testing::Test {
 protected:
  ClientLimiter Make(double calls, std::size_t streams, std::size_t clients = 4096) {
    ClientLimits limits;
    limits.calls_per_second = calls;
    limits.max_streams = streams;
    limits.max_clients = clients;
    limits.monotonic_ns = [this] { return now_ns_; };
    return ClientLimiter(limits);
  }
  int Admitted(ClientLimiter& limiter, const std::string& client, int calls) {
    int admitted = 0;
    for (int i = 0; i < calls; ++i) admitted += limiter.AdmitCall(client) ? 1 : 0;
    return admitted;
  }
  std::int64_t now_ns_ = 1'000'000'000'000;
};

TEST_F(ClientLimiterTest, AClientHasTwoSecondsOfCallsAtOnceThenItsRate) {
  ClientLimiter limiter = Make(10, 0);
  EXPECT_EQ(Admitted(limiter, "a", 100), 20);
  now_ns_ += 500'000'000;
  EXPECT_EQ(Admitted(limiter, "a", 100), 5);
  now_ns_ += 3'600'000'000'000;
  EXPECT_EQ(Admitted(limiter, "a", 100), 20);
}

TEST_F(ClientLimiterTest, OneWhoFloodsTakesNothingFromAnother) {
  ClientLimiter limiter = Make(10, 0);
  Admitted(limiter, "flood", 100'000);
  EXPECT_EQ(Admitted(limiter, "calm", 3), 3);
}

TEST_F(ClientLimiterTest, StreamsAreCountedUntilTheyAreOver) {
  ClientLimiter limiter = Make(0, 2);
  auto first = limiter.AdmitStream("a");
  auto second = limiter.AdmitStream("a");
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(limiter.AdmitStream("a"), nullptr);
  EXPECT_NE(limiter.AdmitStream("b"), nullptr);
  first.reset();
  EXPECT_NE(limiter.AdmitStream("a"), nullptr);
}

TEST_F(ClientLimiterTest, NoLimitMeansNone) {
  ClientLimiter limiter = Make(0, 0);
  EXPECT_EQ(Admitted(limiter, "a", 10'000), 10'000);
  std::vector<std::shared_ptr<void>> slots;
  for (int i = 0; i < 1000; ++i) slots.push_back(limiter.AdmitStream("a"));
  EXPECT_NE(slots.back(), nullptr);
  EXPECT_EQ(limiter.clients(), 0u);
}

TEST_F(ClientLimiterTest, AFloodOfAddressesNeitherGrowsNorForgetsWhoIsStillLimited) {
  ClientLimiter limiter = Make(10, 4, 8);
  Admitted(limiter, "flood", 100);
  const auto held = limiter.AdmitStream("holder");
  for (int i = 0; i < 1000; ++i) limiter.AdmitCall("address" + std::to_string(i));
  EXPECT_LE(limiter.clients(), 9u);  // and the one that stands for all others
  EXPECT_EQ(Admitted(limiter, "flood", 1), 0);
  // Those that do not fit share one allowance.
  EXPECT_EQ(Admitted(limiter, "new1", 100) + Admitted(limiter, "new2", 100), 0);
  // Once the quiet ones have their calls again they make room; who holds a stream does not.
  now_ns_ += 10'000'000'000;
  EXPECT_EQ(Admitted(limiter, "new3", 100), 20);
}

TEST_F(ClientLimiterTest, ASlotMayOutliveItsLimiter) {
  std::shared_ptr<void> slot;
  {
    ClientLimiter limiter = Make(0, 1);
    slot = limiter.AdmitStream("a");
  }
  slot.reset();
}

TEST(ClientOfPeer, LeavesThePortOff) {
  EXPECT_EQ(ClientOfPeer("ipv4:10.1.2.3:5000"), "10.1.2.3");
  EXPECT_EQ(ClientOfPeer("ipv6:%5Bfe80::1%5D:5000"), "fe80::1");
  EXPECT_EQ(ClientOfPeer("ipv6:[fe80::1]:5000"), "fe80::1");
  EXPECT_EQ(ClientOfPeer("unix:/run/x"), "unix:/run/x");
  EXPECT_EQ(ClientOfPeer(""), "");
  EXPECT_EQ(ClientOfPeer("ipv4:"), "");
}

}  // namespace
}  // namespace lossgauge::transport
