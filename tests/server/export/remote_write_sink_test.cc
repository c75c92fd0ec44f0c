// Remote write against a receiver of our own that answers whatever a test wants.
#include "server/export/remote_write_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <snappy.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "prometheus/remote.pb.h"
#include "server/transport/httplib.h"
#include "tests/scratch_directory.h"
#include "tests/server/transport/certificates.h"

namespace lossgauge::export_ {
namespace {

using state::ShipResult;
using testing::CertificateFiles;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RemoteWriteSinkTest : public ::testing::Test {
 protected:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }
  void TearDown() override {
    if (!server_) return;
    server_->stop();
    thread_.join();
  }
  void Listen(std::unique_ptr<httplib::Server> server, Handler handler) {
    server_ = std::move(server);
    server_->Post("/api/v1/write", [this, handler](const httplib::Request& request, httplib::Response& response) {
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      handler(request, response);
    });
    port_ = server_->bind_to_any_port("127.0.0.1");
    ASSERT_GT(port_, 0);
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void Listen(Handler handler) { Listen(std::make_unique<httplib::Server>(), std::move(handler)); }
  RemoteWriteOptions Options(bool tls = false) {
    RemoteWriteOptions options;
    options.url = {tls, "127.0.0.1", static_cast<std::uint16_t>(port_), "/api/v1/write"};
    options.labels = {{"instance", "n1"}, {"job", "lossgauged"}};
    return options;
  }
  SinkAnswer Send(const RemoteWriteOptions& options) {
    auto sink = RemoteWriteSink::Make(options);
    EXPECT_TRUE(sink.ok()) << sink.status();
    return sink.ok() ? (*sink)->Send("run \"a\"", Steps()) : SinkAnswer();
  }
  static std::vector<TimedStep> Steps() {
    std::vector<TimedStep> steps;
    for (int i = 0; i < 3; ++i) {
      auto step = std::make_shared<state::StepSummary>();
      step->step = 10 + i;
      step->loss_nats = 2.5 - i;
      if (i == 1) step->grad_norm = std::numeric_limits<double>::infinity();
      if (i == 2) step->grad_norm = 1.5;
      steps.push_back({step, 1'000'000 + i});
    }
    return steps;
  }
  static Handler Status(int status, std::string body = "") {
    return [status, body](const httplib::Request&, httplib::Response& response) {
      response.status = status;
      response.set_content(body, "text/plain");
    };
  }

  std::atomic<bool> begun_{false}, end_{false};  // of handlers, which may outlive the test's body
  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<httplib::Request> requests_;
  int port_ = 0;
};

TEST_F(RemoteWriteSinkTest, TheRequestIsWhatReceiversWant) {
  Listen(Status(204));
  const SinkAnswer answer = Send(Options());
  EXPECT_EQ(answer.result, ShipResult::kTaken) << answer.text;
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(requests_[0].get_header_value("Content-Encoding"), "snappy");
  EXPECT_EQ(requests_[0].get_header_value("Content-Type"), "application/x-protobuf");
  EXPECT_EQ(requests_[0].get_header_value("X-Prometheus-Remote-Write-Version"), "0.1.0");
  std::string plain;
  ASSERT_TRUE(snappy::Uncompress(requests_[0].body.data(), requests_[0].body.size(), &plain));
  prompb::WriteRequest request;
  ASSERT_TRUE(request.ParseFromString(plain));
  std::uint64_t samples = 0;
  bool found = false;
  for (const auto& series : request.timeseries()) {
    std::vector<std::string> names;
    std::string metric;
    for (const auto& label : series.labels()) {
      names.push_back(label.name());
      if (label.name() == "__name__") metric = label.value();
      if (label.name() == "run") {
        EXPECT_EQ(label.value(), "run \"a\"");
      }
    }
    EXPECT_THAT(names, ElementsAre("__name__", "instance", "job", "run"));
    std::int64_t last = 0;
    for (const auto& sample : series.samples()) {
      EXPECT_GT(sample.timestamp(), last);
      last = sample.timestamp();
    }
    samples += static_cast<std::uint64_t>(series.samples_size());
    if (metric == "lossgauge_by_step_loss_nats") {
      found = true;
      ASSERT_EQ(series.samples_size(), 3);
      EXPECT_EQ(series.samples(2).value(), 0.5);
      EXPECT_EQ(series.samples(2).timestamp(), 1'000'002);
    }
    // Neither measured at the first step nor finite at the second.
    if (metric == "lossgauge_by_step_grad_norm") {
      EXPECT_EQ(series.samples_size(), 1);
    }
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(samples, answer.samples);
}

TEST_F(RemoteWriteSinkTest, EveryAnswerIsWhatItSays) {
  std::atomic<int> status{0};
  Listen([&](const httplib::Request&, httplib::Response& response) {
    response.status = status;
    response.set_header("Retry-After", "9");
    response.set_content("out of order sample", "text/plain");
  });
  auto sink = RemoteWriteSink::Make(Options());
  ASSERT_TRUE(sink.ok());
  const auto ask = [&](int code) {
    status = code;
    return (*sink)->Send("r", Steps());
  };
  EXPECT_EQ(ask(200).result, ShipResult::kTaken);
  EXPECT_EQ(ask(400).result, ShipResult::kRefused);
  EXPECT_EQ(ask(400).reason, state::ShipDrop::kOutOfOrder);
  EXPECT_EQ(ask(404).result, ShipResult::kRefused);
  EXPECT_EQ(ask(429).result, ShipResult::kBusy);
  EXPECT_EQ(ask(503).retry_after_ns, 9'000'000'000);
  EXPECT_EQ(ask(500).result, ShipResult::kFailed);
  EXPECT_THAT(ask(500).text, HasSubstr("HTTP 500 out of order"));
}

TEST_F(RemoteWriteSinkTest, ARedirectIsNotFollowed) {
  std::atomic<int> elsewhere{0};
  Listen([](const httplib::Request&, httplib::Response& response) { response.set_redirect("/elsewhere", 307); });
  server_->Post("/elsewhere", [&](const httplib::Request&, httplib::Response&) { ++elsewhere; });
  EXPECT_EQ(Send(Options()).result, ShipResult::kRefused);
  EXPECT_EQ(elsewhere, 0);
}

TEST_F(RemoteWriteSinkTest, NobodyThereIsUnreachable) {
  Listen(Status(200));
  RemoteWriteOptions options = Options();
  server_->stop();
  thread_.join();
  server_.reset();
  EXPECT_EQ(Send(options).result, ShipResult::kUnreachable);
}

TEST_F(RemoteWriteSinkTest, AReceiverThatDoesNotAnswerIsGivenUpAndOneThatIsCutOffIsTriedAgain) {
  Listen([this](const httplib::Request&, httplib::Response&) {
    while (!end_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  RemoteWriteOptions options = Options();
  options.answer_time = std::chrono::milliseconds(100);
  const SinkAnswer answer = Send(options);
  EXPECT_EQ(answer.result, ShipResult::kUnreachable);
  EXPECT_THAT(answer.text, HasSubstr("no answer"));
  end_ = true;
}

TEST_F(RemoteWriteSinkTest, CancelEndsWhatWaits) {
  Listen([this](const httplib::Request&, httplib::Response&) {
    begun_ = true;
    while (!end_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  RemoteWriteOptions options = Options();
  options.answer_time = std::chrono::hours(1);
  auto sink = RemoteWriteSink::Make(options);
  ASSERT_TRUE(sink.ok());
  std::thread cancel([&] {
    while (!begun_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    (*sink)->Cancel();
  });
  EXPECT_EQ((*sink)->Send("r", Steps()).result, ShipResult::kUnreachable);
  EXPECT_EQ((*sink)->Send("r", Steps()).result, ShipResult::kUnreachable);
  cancel.join();
  end_ = true;
}

TEST_F(RemoteWriteSinkTest, AnEndlessAnswerIsCutOff) {
  Listen([](const httplib::Request&, httplib::Response& response) {
    response.status = 500;
    response.set_chunked_content_provider("text/plain", [](std::size_t, httplib::DataSink& out) {
      const std::string block(16384, 'x');
      return out.write(block.data(), block.size());
    });
  });
  EXPECT_EQ(Send(Options()).result, ShipResult::kFailed);
}

TEST_F(RemoteWriteSinkTest, HeadersComeFromAFileAndAreReadAgain) {
  Listen(Status(200));
  const ScratchDirectory directory;
  RemoteWriteOptions options = Options();
  options.headers_file = directory / "headers";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(options.headers_file) << text;
    chmod(options.headers_file.c_str(), mode);
  };
  write("X-Scope-OrgID: one\n", 0644);
  EXPECT_THAT(std::string(RemoteWriteSink::Make(options).status().message()), HasSubstr("chmod o-r"));
  write("X-Scope-OrgID: one\n", 0600);
  auto sink = RemoteWriteSink::Make(options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  (*sink)->Send("r", Steps());
  write("X-Scope-OrgID: another\n", 0600);
  (*sink)->Send("r", Steps());
  ASSERT_EQ(requests_.size(), 2u);
  EXPECT_EQ(requests_[0].get_header_value("X-Scope-OrgID"), "one");
  EXPECT_EQ(requests_[1].get_header_value("X-Scope-OrgID"), "another");
}

TEST_F(RemoteWriteSinkTest, TheReceiversCertificateIsChecked) {
  const ScratchDirectory directory;
  testing::Certificates made(directory.path());
  const auto outcome = [&](const CertificateFiles& files, const std::string& ca, const CertificateFiles& own = {}, const std::string& client_ca = "") {
    TearDown();
    requests_.clear();
    Listen(std::make_unique<httplib::SSLServer>(files.cert.c_str(), files.key.c_str(), client_ca.empty() ? nullptr : client_ca.c_str()), Status(200));
    RemoteWriteOptions options = Options(true);
    options.ca_file = ca;
    options.cert_file = own.cert;
    options.key_file = own.key;
    return Send(options).result;
  };
  const CertificateFiles good = made.Sign("good", "IP:127.0.0.1");
  EXPECT_EQ(outcome(good, made.ca()), ShipResult::kTaken);
  EXPECT_EQ(outcome(good, made.other_ca()), ShipResult::kUnreachable);
  EXPECT_EQ(outcome(good, ""), ShipResult::kUnreachable);  // not one of the system's authorities
  EXPECT_EQ(outcome(made.Sign("old", "IP:127.0.0.1", "ca", -1), made.ca()), ShipResult::kUnreachable);
  EXPECT_EQ(outcome(made.Sign("elsewhere", "IP:10.9.8.7"), made.ca()), ShipResult::kUnreachable);
  EXPECT_EQ(outcome(made.SelfSigned("self", "IP:127.0.0.1"), made.ca()), ShipResult::kUnreachable);
  EXPECT_EQ(outcome(good, made.ca(), made.Sign("client", "DNS:client"), made.ca()), ShipResult::kTaken);
  EXPECT_EQ(outcome(good, made.ca(), {}, made.ca()), ShipResult::kUnreachable);
}

TEST_F(RemoteWriteSinkTest, FlagsThatMakeNoSenseAreNamed) {
  RemoteWriteOptions options;
  options.url = {false, "h", 80, "/p"};
  options.ca_file = "/nowhere";
  EXPECT_THAT(std::string(RemoteWriteSink::Make(options).status().message()), HasSubstr("https://"));
  options.url.tls = true;
  EXPECT_THAT(std::string(RemoteWriteSink::Make(options).status().message()), HasSubstr("--remote_write_tls_ca: /nowhere"));
  options.ca_file.clear();
  options.cert_file = "/nowhere";
  EXPECT_THAT(std::string(RemoteWriteSink::Make(options).status().message()), HasSubstr("belong together"));
}

}  // namespace
}  // namespace lossgauge::export_
