#include "server/web/event_stream.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/server/web/web_fixture.h"

namespace lossgauge::web {
namespace {

using testing::HttpAnswer;
using testing::kSecond;
using testing::MakeRun;
using testing::MakeStep;
using testing::MakeVerdict;
using testing::RawConnection;
using ::testing::HasSubstr;

class EventStreamTest : public testing::WebFixture {
 protected:
  // Opens a stream; the head has been read.
  std::unique_ptr<RawConnection> Open(const std::string& target, const std::string& headers = "") {
    auto connection = std::make_unique<RawConnection>(server_->port());
    connection->Send("GET " + target + " HTTP/1.1\r\n" + HostLine() + headers + "\r\n");
    head_ = connection->ReadHead();
    return connection;
  }
  // The next event that holds `field`, with chunk framing around it.
  static std::string NextEvent(RawConnection& connection, const std::string& field) {
    while (true) {
      const std::string event = connection.ReadUntil("\n\n");
      if (event.find(field) != std::string::npos || event.find("\n\n") == std::string::npos) return event;
    }
  }
  template <typename Message>
  static Message Data(const std::string& event) {
    Message message;
    const std::size_t begin = event.find("data: ");
    EXPECT_NE(begin, std::string::npos) << event;
    if (begin != std::string::npos) {
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(event.substr(begin + 6, event.find("\n\n") - begin - 6), &message).ok()) << event;
    }
    return message;
  }
  HttpAnswer head_;
};

TEST_F(EventStreamTest, StepsComeAsTheyArePublishedWithAnIdToResumeFrom) {
  StartServer();
  Publish({MakeRun("run", 1, 3)});
  const auto stream = Open("/api/v1/steps/watch?run=run&after_sequence=1");
  EXPECT_EQ(head_.status, 200);
  EXPECT_EQ(head_.headers.at("Content-Type"), "text/event-stream");
  std::string event = NextEvent(*stream, "data:");
  EXPECT_THAT(event, HasSubstr("id: 3\n"));
  EXPECT_EQ(Data<v1::WatchStepsResponse>(event).steps_size(), 2);
  Publish({MakeRun("run", 1, 4)});
  event = NextEvent(*stream, "data:");
  EXPECT_THAT(event, HasSubstr("id: 4\n"));
  EXPECT_EQ(Data<v1::WatchStepsResponse>(event).steps(0).sequence(), 4u);
}

TEST_F(EventStreamTest, ABrowserThatReconnectsGoesOnWhereItWas) {
  StartServer();
  Publish({MakeRun("run", 1, 9)});
  const auto stream = Open("/api/v1/steps/watch?run=run&after_sequence=0", "Last-Event-ID: 7\r\n");
  EXPECT_EQ(Data<v1::WatchStepsResponse>(NextEvent(*stream, "data:")).steps(0).sequence(), 8u);
  EXPECT_EQ(Get("/api/v1/steps/watch?run=run", "Last-Event-ID: x\r\n").status, 400);
}

TEST_F(EventStreamTest, AVerdictComesFirstThenItsChangesAndThenTheEnd) {
  StartServer();
  Publish({MakeRun("run", 1, 3)});
  const auto stream = Open("/api/v1/verdict/watch?run=run");
  EXPECT_EQ(Data<v1::Verdict>(NextEvent(*stream, "data:")).action(), v1::CONTINUE);
  auto run = MakeRun("run", 1, 3);
  run->verdict = MakeVerdict(state::Action::kHalt, "integrity/mass");
  Publish({run});
  EXPECT_EQ(Data<v1::Verdict>(NextEvent(*stream, "data:")).action(), v1::HALT);
  clock_.Advance(31 * kSecond);
  EXPECT_EQ(Data<v1::Verdict>(NextEvent(*stream, "data:")).action(), v1::UNKNOWN);
  Publish({});
  EXPECT_THAT(NextEvent(*stream, "event: end"), HasSubstr("NOT_FOUND"));
}

TEST_F(EventStreamTest, WithoutNewsCommentsKeepItAwake) {
  WebOptions options = Options();
  options.heartbeat = std::chrono::milliseconds(1);
  StartServer(options);
  Publish({MakeRun("run", 1, 3)});
  const auto stream = Open("/api/v1/steps/watch?run=run");
  EXPECT_THAT(NextEvent(*stream, ": alive"), HasSubstr(": alive\n\n"));
  EXPECT_THAT(NextEvent(*stream, ": alive"), HasSubstr(": alive\n\n"));
}

TEST_F(EventStreamTest, StreamsAreBoundedAndTheirPlacesGivenBack) {
  WebOptions options = Options();
  options.max_event_streams = 2;
  StartServer(options);
  Publish({MakeRun("run", 1, 3)});
  auto first = Open("/api/v1/verdict/watch?run=run");
  NextEvent(*first, "data:");
  const auto second = Open("/api/v1/steps/watch?run=run&after_sequence=0");
  NextEvent(*second, "data:");
  const HttpAnswer third = Get("/api/v1/verdict/watch?run=run");
  EXPECT_EQ(third.status, 429);
  EXPECT_THAT(third.body, HasSubstr("all 2 event streams"));
  EXPECT_EQ(Get("/metrics").status, 200);
  first.reset();
  while (server_->open_event_streams() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto fourth = Open("/api/v1/verdict/watch?run=run");
  EXPECT_EQ(head_.status, 200);
}

TEST_F(EventStreamTest, ShutdownTellsThemAndDoesNotWaitForThoseWhoDoNotRead) {
  StartServer();
  auto run = MakeRun("run", 1, 0);
  auto chunk = std::make_shared<state::StepChunk>();
  for (std::uint64_t s = 1; s <= 64; ++s) {
    state::StepSummary step = MakeStep(s, static_cast<std::int64_t>(s), 2);
    step.missing_ranks.assign(50'000, 1u << 20);
    chunk->push_back(std::make_shared<const state::StepSummary>(step));
  }
  run->recent_steps = {chunk};
  run->next_sequence = 65;
  Publish({run});
  const auto reader = Open("/api/v1/verdict/watch?run=run");
  NextEvent(*reader, "data:");
  RawConnection silent(server_->port());
  silent.Send("GET /api/v1/steps/watch?run=run&after_sequence=0 HTTP/1.1\r\n" + HostLine() + "\r\n");
  while (server_->open_event_streams() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server_->Shutdown();  // returns
  EXPECT_THAT(NextEvent(*reader, "event: end"), HasSubstr("UNAVAILABLE"));
}

}  // namespace
}  // namespace lossgauge::web
