// lossgauged whose drain thread stands still, its other threads going on: what each kind of prober is told, and that it is
// taken back.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <filesystem>
#include <functional>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/transport/httplib.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"
#include "tests/server/main/held_thread.h"
#include "tests/server/main/page_value.h"

namespace lossgauge {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::DaemonProcess;
using ::testing::HasSubstr;
using testing::HeldThread;
using ::testing::StartsWith;

constexpr char kNoTracing[] = "no process may be traced here";
constexpr char kStandsStill[] = "the drain thread has stood still for ";

// The socket of a service manager.
class Manager {
 public:
  explicit Manager(const std::string& path) : descriptor_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << path;
    const timeval limit{60, 0};
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Manager() { close(descriptor_); }
  // The next message; "" if none comes.
  std::string Next() {
    char bytes[4096];
    const ssize_t size = recv(descriptor_, bytes, sizeof bytes, 0);
    return size < 0 ? "" : std::string(bytes, static_cast<std::size_t>(size));
  }
  // All up to the first that begins so, that one last.
  std::vector<std::string> Until(const std::string& beginning) {
    std::vector<std::string> messages;
    do messages.push_back(Next());
    while (!messages.back().empty() && !messages.back().starts_with(beginning));
    return messages;
  }

 private:
  const int descriptor_;
};

class StuckTest : public ::testing::Test {
 protected:
  void Start(const std::string& role, const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {role, "--state_dir=" + (directory_ / "state"), "--http_listen=127.0.0.1:0",
                                      "--grpc_listen=127.0.0.1:0", "--stuck_after=1s"};
    if (role == "sidecar") {
      std::filesystem::create_directory(directory_ / "rings");
      testing::FakeProducerOptions options;
      options.directory = directory_ / "rings";
      options.run = "run";
      producer_ = std::make_unique<testing::FakeProducer>(options);
      producer_->PublishSteps(0, 9);
      flags.push_back("--ring_dir=" + (directory_ / "rings"));
    }
    flags.insert(flags.end(), more.begin(), more.end());
    process_ = std::make_unique<DaemonProcess>(flags, directory_ / "log");
    const std::string grpc = process_->Address("gRPC"), http = process_->Address("HTTP");
    ASSERT_FALSE(http.empty()) << process_->Log();
    health_ = grpc::health::v1::Health::NewStub(grpc::CreateChannel(grpc, grpc::InsecureChannelCredentials()));
    http_ = std::make_unique<httplib::Client>("127.0.0.1", testing::PortOf(http));
    ASSERT_TRUE(Eventually([&] { return Get("/-/ready") == "200 ready\n"; })) << Get("/-/ready");
  }
  // False where nobody may trace a process.
  bool Hold() {
    held_ = std::make_unique<HeldThread>(process_->pid(), "lossgauge-drain");
    return held_->held();
  }
  static bool Eventually(const std::function<bool()>& is_so) {
    for (int tries = 0; tries < 600; ++tries) {
      if (is_so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  // Status and body.
  std::string Get(const std::string& path) {
    const auto answer = http_->Get(path.c_str());
    return answer ? std::to_string(answer->status) + " " + answer->body : "no answer";
  }
  HealthCheckResponse::ServingStatus Health(const std::string& service) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    return health_->Check(&context, request, &response).ok() ? response.status() : HealthCheckResponse::UNKNOWN;
  }

  ScratchDirectory directory_;
  std::unique_ptr<testing::FakeProducer> producer_;
  std::unique_ptr<DaemonProcess> process_;
  std::unique_ptr<HeldThread> held_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  std::unique_ptr<httplib::Client> http_;
};

TEST_F(StuckTest, ASidecarIsNotReadyAndEndsNeitherItselfNorATrainer) {
  Start("sidecar");
  if (!Hold()) GTEST_SKIP() << kNoTracing;
  EXPECT_TRUE(Eventually([&] { return Get("/-/ready").starts_with(std::string("503 not ready: ") + kStandsStill); }))
      << Get("/-/ready");
  EXPECT_EQ(Health(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Health("run/run/restart"), HealthCheckResponse::SERVING);
  EXPECT_TRUE(process_->WaitForLog("not healthy: ")) << process_->Log();
  EXPECT_EQ(Get("/-/healthy"), "200 lossgauged lives\n") << "one that is started again and again ends the trainer that asks it";
  EXPECT_EQ(Health("run/run/restart"), HealthCheckResponse::SERVING);
  held_->Release();
  EXPECT_TRUE(Eventually([&] { return Get("/-/ready") == "200 ready\n"; })) << Get("/-/ready");
  EXPECT_EQ(Health(""), HealthCheckResponse::SERVING);
  EXPECT_TRUE(process_->WaitForLog("ready again: the drain thread goes on")) << process_->Log();
  EXPECT_THAT(process_->Log(), HasSubstr(std::string("not ready: ") + kStandsStill));
}

TEST_F(StuckTest, ADaemonThatHangsIsNotHealthy) {
  Start("daemon");
  if (!Hold()) GTEST_SKIP() << kNoTracing;
  EXPECT_TRUE(Eventually([&] { return Get("/-/ready").starts_with(std::string("503 not ready: ") + kStandsStill); }))
      << Get("/-/ready");
  EXPECT_TRUE(Eventually([&] { return Get("/-/healthy").starts_with(std::string("503 not healthy: ") + kStandsStill); }))
      << Get("/-/healthy");
  held_->Release();
  EXPECT_TRUE(Eventually([&] { return Get("/-/healthy") == "200 lossgauged lives\n"; })) << Get("/-/healthy");
}

TEST_F(StuckTest, SystemdIsToldAndItsWatchdogGoesUnfedWhileTheThreadHangs) {
  Manager manager(directory_ / "notify");
  setenv("NOTIFY_SOCKET", (directory_ / "notify").c_str(), 1);
  setenv("WATCHDOG_USEC", "200000", 1);
  Start("sidecar");
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
  EXPECT_EQ(manager.Next(), "READY=1");
  EXPECT_EQ(manager.Next(), "WATCHDOG=1");
  if (!Hold()) GTEST_SKIP() << kNoTracing;
  EXPECT_THAT(manager.Until("STATUS=").back(), StartsWith(std::string("STATUS=not ready: ") + kStandsStill));
  ASSERT_TRUE(process_->WaitForLog("not healthy: ")) << process_->Log();
  // It was fed while it was only not ready. Five times the second is beyond four: from there on these are ticks of a thread
  // that hangs.
  const std::string hangs = std::string("STATUS=not ready: ") + kStandsStill + "5 s";
  ASSERT_THAT(manager.Until(hangs).back(), StartsWith(hangs));
  std::vector<std::string> while_hung;
  for (int i = 0; i < 20; ++i) while_hung.push_back(manager.Next());
  EXPECT_THAT(while_hung, ::testing::Each(StartsWith("STATUS=not ready: ")));
  held_->Release();
  EXPECT_EQ(manager.Until("WATCHDOG=1").back(), "WATCHDOG=1") << "fed again";
  process_->Signal(SIGTERM);
  EXPECT_EQ(manager.Until("STOPPING=1").back(), "STOPPING=1");
  EXPECT_EQ(process_->WaitFor(std::chrono::seconds(30)), 0) << process_->Log();
}

TEST_F(StuckTest, APolicyIsNotWaitedForWithoutEnd) {
  std::ofstream(directory_ / "policy.yaml") << "version: one\n";
  Start("sidecar", {"--policy=" + (directory_ / "policy.yaml")});
  if (!Hold()) GTEST_SKIP() << kNoTracing;
  process_->Signal(SIGHUP);
  EXPECT_TRUE(process_->WaitForLog("as soon as the drain thread, which is busy or stands still, comes round"))
      << process_->Log();
  held_->Release();
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->WaitFor(std::chrono::seconds(30)), 0) << process_->Log();
}

}  // namespace
}  // namespace lossgauge
