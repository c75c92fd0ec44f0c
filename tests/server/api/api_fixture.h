// The API over a board, a mailbox, a history and a clock made by hand.
#ifndef LOSSGAUGE_TESTS_SERVER_API_API_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_API_API_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "server/api/api.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::api {

class ApiTest : public ::testing::Test {
 protected:
  void Publish(std::shared_ptr<const state::RunSnapshot> run) { board_.Publish(testing::MakeSnapshot(++version_, {std::move(run)})); }
  static std::string Message(const absl::Status& status) { return std::string(status.message()); }

  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<testing::FakeHistory> history_ = std::make_shared<testing::FakeHistory>();
  testing::FakeClock clock_;
  Api api_{board_, mailbox_, history_, clock_};
  std::uint64_t version_ = 0;
};

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_TESTS_SERVER_API_API_FIXTURE_H_
