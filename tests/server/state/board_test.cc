#include "server/state/board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lossgauge::state {
namespace {

std::shared_ptr<const Snapshot> Version(std::uint64_t version) {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->version = version;
  return snapshot;
}

TEST(SnapshotBoard, HandsOutAnEmptySnapshotBeforeTheFirstOne) {
  SnapshotBoard board;
  ASSERT_NE(board.Get(), nullptr);
  EXPECT_EQ(board.Get()->version, 0u);
}

TEST(SnapshotBoard, ShowsEachWaiterRisingVersionsOnly) {
  SnapshotBoard board;
  std::atomic<bool> fell{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      std::uint64_t seen = 0;
      while (!board.closed()) {
        const auto snapshot = board.WaitNewer(seen, 1'000'000'000);
        if (snapshot->version < seen) fell = true;
        seen = snapshot->version;
      }
    });
  }
  for (std::uint64_t v = 1; v <= 2000; ++v) board.Publish(Version(v));
  board.Close();
  for (auto& reader : readers) reader.join();
  EXPECT_FALSE(fell);
  EXPECT_EQ(board.Get()->version, 2000u);
}

TEST(SnapshotBoard, WakesAWaiterOnClose) {
  SnapshotBoard board;
  std::thread waiter([&] { board.WaitNewer(99, std::int64_t{3600} * 1'000'000'000); });
  board.Close();
  waiter.join();
}

TEST(Mailbox, DeliversEachRequestOnceAndRefusesMoreThanItHolds) {
  Mailbox mailbox;
  int answered = 0;
  absl::Status status;
  int sent = 0;
  while ((status = mailbox.Send(Mailbox::Acknowledge{"id", {}}, [&](absl::Status, const Incident*) { ++answered; })).ok()) ++sent;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(sent, 100);
  EXPECT_TRUE(mailbox.Send(Mailbox::Report{"r", {}}, [&](absl::Status, std::uint64_t n) { answered += static_cast<int>(n); }).ok());
  std::string mode;
  EXPECT_TRUE(mailbox.Send(Mailbox::SetMode{"r", "shadow", "anna"}, [&](absl::Status, const std::string& now) { mode += now; }).ok());
  for (int round = 0; round < 2; ++round) {
    mailbox.Drain([](Mailbox::Acknowledge&, Mailbox::AcknowledgeDone& done) { done(absl::OkStatus(), nullptr); },
                  [](Mailbox::Report&, Mailbox::ReportDone& done) { done(absl::OkStatus(), 1000); },
                  [](Mailbox::SetMode&, Mailbox::SetModeDone& done) { done(absl::OkStatus(), "shadow"); });
  }
  EXPECT_EQ(answered, sent + 1000);
  EXPECT_EQ(mode, "shadow");
}

}  // namespace
}  // namespace lossgauge::state
