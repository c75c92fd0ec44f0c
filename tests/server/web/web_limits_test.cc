// What a hostile or broken HTTP client can and cannot take from us.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "tests/server/web/web_fixture.h"

namespace lossgauge::web {
namespace {

using testing::HttpAnswer;
using testing::MakeRun;
using testing::RawConnection;
using ::testing::HasSubstr;

class WebLimitsTest : public testing::WebFixture {};

TEST_F(WebLimitsTest, ClientsThatSendNothingOrDribbleDoNotShutOutTheScrape) {
  WebOptions options = Options();
  options.request_threads = 2;
  options.max_event_streams = 1;
  options.request_time = std::chrono::milliseconds(200);
  options.idle_time = std::chrono::milliseconds(200);
  StartServer(options);
  std::vector<std::unique_ptr<RawConnection>> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(std::make_unique<RawConnection>(server_->port()));
    if (i % 2 == 0) slow.back()->Send("GET /metrics HT");
  }
  EXPECT_EQ(Get("/metrics").status, 200);
  // The dribblers have lost their connections, not finished their requests.
  EXPECT_EQ(slow.front()->ReadAnswer().status, 0);
}

// With the times of a request and of idling out of reach, only hurrying can free a thread.
TEST_F(WebLimitsTest, HundredsOfHalfRequestsDoNotShutOutAHealthProbe) {
  WebOptions options = Options();
  options.request_time = std::chrono::hours(1);
  options.idle_time = std::chrono::hours(1);
  options.hurried_time = std::chrono::milliseconds(50);
  StartServer(options);
  std::vector<std::unique_ptr<RawConnection>> slow;
  const auto open = [&](int count) {
    for (int i = 0; i < count; ++i) {
      slow.push_back(std::make_unique<RawConnection>(server_->port()));
      if (i % 3 != 0) slow.back()->Send("GET /metrics HTTP/1.1\r\nHo");
    }
  };
  open(150);
  EXPECT_EQ(Get("/-/healthy").status, 200);
  open(92);
  EXPECT_EQ(Get("/-/healthy").status, 200);
  EXPECT_EQ(Get("/metrics").status, 200);
}

TEST_F(WebLimitsTest, HalfOfASecondRequestDoesNotKeepTheThread) {
  WebOptions options = Options();
  options.request_threads = 1;
  options.max_event_streams = 0;
  options.request_time = std::chrono::hours(1);
  options.hurried_time = std::chrono::milliseconds(50);
  StartServer(options);
  RawConnection slow(server_->port());
  slow.Send("GET /-/healthy HTTP/1.1\r\n" + HostLine() + "\r\nGET /metr");
  EXPECT_EQ(slow.ReadAnswer().status, 200);
  EXPECT_EQ(Get("/-/healthy").status, 200);
  EXPECT_EQ(slow.ReadAnswer().status, 0);
}

TEST_F(WebLimitsTest, ASlowRequestIsServedWhileNobodyWaits) {
  WebOptions options = Options();
  options.request_threads = 1;
  options.max_event_streams = 0;
  options.hurried_time = std::chrono::milliseconds(1);
  StartServer(options);
  RawConnection slow(server_->port());
  const std::string request = "GET /-/healthy HTTP/1.1\r\n" + HostLine() + "\r\n";
  for (const char byte : request) {
    ASSERT_TRUE(slow.Send(std::string(1, byte)));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(slow.ReadAnswer().status, 200);
}

TEST_F(WebLimitsTest, WhatIsTooLongIsNamed) {
  StartServer();
  HttpAnswer answer = Get("/metrics", "X-Long: " + std::string(20'000, 'a') + "\r\n");
  EXPECT_EQ(answer.status, 431);
  EXPECT_THAT(answer.body, ::testing::HasSubstr("a header is longer than 8 KiB"));
  EXPECT_EQ(answer.headers["Connection"], "close");
  EXPECT_EQ(answer.headers["X-Content-Type-Options"], "nosniff");
  std::string many;
  for (int i = 0; i < 10; ++i) many += "X-" + std::to_string(i) + ": " + std::string(7000, 'a') + "\r\n";
  EXPECT_EQ(Get("/metrics", many).status, 431);
  EXPECT_EQ(Get("/metrics", many.substr(0, many.size() / 2 + 3) + "\r\n").status, 200);
  answer = Get("/metrics?" + std::string(200'000, 'a'));
  EXPECT_EQ(answer.status, 414);
  EXPECT_THAT(answer.body, ::testing::HasSubstr("the request line is longer than 8 KiB"));
}

TEST_F(WebLimitsTest, AByteNowAndThenDoesNotExtendARequestsTime) {
  WebOptions options = Options();
  options.request_time = std::chrono::milliseconds(150);
  StartServer(options);
  RawConnection connection(server_->port());
  connection.Send("GET /metrics HTTP/1.1\r\n");
  bool closed = false;
  for (int i = 0; i < 400 && !closed; ++i) {
    closed = !connection.Send("X");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(closed);
}

TEST_F(WebLimitsTest, HeadersAndBodiesWithoutEndAreCutOff) {
  StartServer();
  {
    RawConnection connection(server_->port());
    connection.Send("GET /metrics HTTP/1.1\r\n" + HostLine());
    bool closed = false;
    for (int i = 0; i < 200'000 && !closed; ++i) closed = !connection.Send("X-" + std::to_string(i) + ": " + std::string(1000, 'x') + "\r\n");
    EXPECT_TRUE(closed);
  }
  EXPECT_EQ(Get("/" + std::string(9000, 'a')).status, 414);
  EXPECT_EQ(Post("/api/v1/actions", std::string(65 << 10, ' ')).status, 413);
  EXPECT_EQ(Get("/-/healthy").status, 200);
}

TEST_F(WebLimitsTest, OddRequestsAreAnsweredOrCutOffAndNothingElseStops) {
  StartServer();
  const std::string host = HostLine();
  const std::string requests[] = {
      "\r\n\r\n",
      "GET\r\n\r\n",
      "GET / HTTP/9.9\r\n" + host + "\r\n",
      "GET http://evil.example/ HTTP/1.1\r\n" + host + "\r\n",
      "GET /metrics HTTP/1.1\r\n" + host + "Range: bytes=" + std::string(7000, '0') + "-\r\n\r\n",
      "GET /metrics HTTP/1.1\r\n" + host + "Range: bytes=0-0" + [] {
        std::string many;
        for (int i = 0; i < 1000; ++i) many += ",0-100";
        return many;
      }() + "\r\n\r\n",
      "GET /metrics HTTP/1.1\r\n" + host + "Accept-Encoding: " + std::string(7000, ',') + "\r\n\r\n",
      "POST /api/v1/actions HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: -1\r\n\r\n{}",
      "POST /api/v1/actions HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
      "POST /api/v1/actions HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
      "POST /api/v1/actions HTTP/1.1\r\n" + host + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 4\r\n\r\n--x\r",
      std::string("GET /\0/ HTTP/1.1\r\n", 18) + host + "\r\n",
      "GET /%00%ff HTTP/1.1\r\n" + host + "\r\n",
      "GET /..%2f..%2fetc/passwd HTTP/1.1\r\n" + host + "\r\n",
  };
  for (const std::string& request : requests) {
    RawConnection connection(server_->port());
    connection.Send(request);
    shutdown(connection.fd(), SHUT_WR);
    connection.ReadAll();
    ASSERT_EQ(Get("/-/healthy").status, 200) << request.substr(0, 80);
  }
}

TEST_F(WebLimitsTest, ARefusedBodyIsNotTakenForTheNextRequest) {
  StartServer();
  RawConnection connection(server_->port());
  const std::string smuggled = "GET /metrics HTTP/1.1\r\n" + HostLine() + "\r\n";
  connection.Send("POST /api/v1/actions HTTP/1.1\r\n" + HostLine() + "Content-Type: text/plain\r\nContent-Length: " +
                  std::to_string(smuggled.size()) + "\r\n\r\n" + smuggled);
  EXPECT_EQ(connection.ReadAnswer().status, 415);
  EXPECT_EQ(connection.ReadAnswer().status, 0);
}

TEST_F(WebLimitsTest, AClientThatDoesNotReadLosesItsConnection) {
  WebOptions options = Options();
  options.write_stall = std::chrono::milliseconds(100);
  options.render_metrics = [] { return std::string(std::size_t{64} << 20, 'x'); };
  options.request_threads = 1;
  options.max_event_streams = 0;
  StartServer(options);
  RawConnection silent(server_->port());
  silent.Send("GET /metrics HTTP/1.1\r\n" + HostLine() + "\r\n");
  EXPECT_EQ(Get("/-/healthy").status, 200);  // the only thread has come back
}

// Holds back all reads of steps until it goes out of scope.
class Gate {
 public:
  explicit Gate(testing::FakeHistory* history) {
    history->on_read_steps = [this] {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
    };
  }
  ~Gate() { Open(); }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void AwaitReaders(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

TEST_F(WebLimitsTest, HistoryTakesItsShareOfThreadsAndMetricsHaveTheRest) {
  WebOptions options = Options();
  options.request_threads = 4;
  options.max_event_streams = 0;
  options.max_history_requests = 3;
  StartServer(options);
  Publish({MakeRun("a", 5, 8), MakeRun("b", 5, 8)});
  Gate gate(history_.get());
  const std::string compare = "GET /api/v1/compare?a=a&b=b HTTP/1.1\r\n" + HostLine() + "\r\n";
  RawConnection first(server_->port()), second(server_->port()), list(server_->port());
  first.Send(compare);
  second.Send(compare);
  gate.AwaitReaders(2);
  HttpAnswer refused = Get("/api/v1/compare?a=a&b=b");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("2 comparisons are under way already"));
  list.Send("GET /api/v1/steps?run=a HTTP/1.1\r\n" + HostLine() + "\r\n");
  gate.AwaitReaders(3);
  refused = Get("/api/v1/incidents?run=a");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("all 3 requests that may read history are under way"));
  EXPECT_EQ(Get("/api/v1/runs?include_past=true").status, 429);
  EXPECT_EQ(Get("/metrics").status, 200);
  EXPECT_EQ(Get("/-/healthy").status, 200);
  EXPECT_EQ(Get("/api/v1/runs").status, 200);
  const std::string plain = Get("/plain").body;
  EXPECT_THAT(plain, HasSubstr(">a</th>")) << "what is live needs no history";
  EXPECT_THAT(plain, HasSubstr("Earlier runs cannot be listed just now."));
  EXPECT_EQ(Get("/api/v1/verdict?run=a").status, 200);
  gate.Open();
  EXPECT_EQ(first.ReadAnswer().status, 200);
  EXPECT_EQ(second.ReadAnswer().status, 200);
  EXPECT_EQ(list.ReadAnswer().status, 200);
  EXPECT_EQ(Get("/api/v1/incidents?run=a").status, 200) << "places are given back";
  EXPECT_EQ(Get("/api/v1/compare?a=a&b=b").status, 200);
}

int OpenDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST_F(WebLimitsTest, RequestsAndBrokenStreamsLeaveNoDescriptorBehind) {
  StartServer();
  Publish({MakeRun("run", 1, 40)});
  const auto storm = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      EXPECT_EQ(Get("/metrics").status, 200);
      while (server_->open_event_streams() > 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      RawConnection broken(server_->port());
      broken.Send("GET /api/v1/steps/watch?run=run&after_sequence=0 HTTP/1.1\r\n" + HostLine() + "\r\n");
      if (i % 2 == 0) broken.ReadUntil("data:");
    }
    while (server_->open_event_streams() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  storm(20);
  const int descriptors = OpenDescriptors();
  storm(200);
  EXPECT_LE(std::abs(OpenDescriptors() - descriptors), 5);
}

}  // namespace
}  // namespace lossgauge::web
