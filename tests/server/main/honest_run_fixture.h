// A real daemon with an honest sidecar and its job, and what must hold of that run whatever else the daemon is sent.
#ifndef LOSSGAUGE_TESTS_SERVER_MAIN_HONEST_RUN_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_MAIN_HONEST_RUN_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"
#include "tests/server/main/page_value.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge::testing {

class BesideAnHonestRun : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}) {
    std::filesystem::create_directory(directory_ / "rings");
    WriteTokenFile(directory_ / "tokens");
    flags.insert(flags.begin(), {"daemon", "--state_dir=" + (directory_ / "daemon"), "--http_listen=127.0.0.1:0", "--grpc_listen=127.0.0.1:0",
                                 "--token_file=" + (directory_ / "tokens")});
    daemon_ = std::make_unique<DaemonProcess>(flags, directory_ / "daemon.log");
    address_ = daemon_->Address("gRPC");
    const std::string http = daemon_->Address("HTTP");
    ASSERT_FALSE(http.empty()) << daemon_->Log();
    http_port_ = PortOf(http);
    FakeProducerOptions options;
    options.directory = directory_ / "rings";
    options.run = "honest";
    options.segment_id[0] = 77;
    options.segment_id[1] = 1;
    producer_ = std::make_unique<FakeProducer>(options);
    sidecar_ = std::make_unique<DaemonProcess>(
        std::vector<std::string>{"sidecar", "--ring_dir=" + (directory_ / "rings"), "--state_dir=" + (directory_ / "sidecar"), "--http_listen=none",
                                 "--grpc_listen=none", "--forward_to=" + address_, "--forward_token_file=" + (directory_ / "tokens")},
        directory_ / "sidecar.log");
    job_ = std::thread([this] {
      for (std::int64_t step = 0; !stop_; ++step) {
        producer_->PublishStep(step);
        producer_->Beat();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    lossgauge_ = v1::LossGauge::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
    ASSERT_TRUE(Eventually([&] { return StepShown() > 5; })) << daemon_->Log() << sidecar_->Log();
    memory_ = Memory();
  }
  void TearDown() override {
    stop_ = true;
    if (job_.joinable()) job_.join();
  }
  static bool Eventually(const std::function<bool()>& is_so) {
    for (int tries = 0; tries < 600; ++tries) {
      if (is_so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  std::int64_t StepShown() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetRunRequest request;
    request.set_run("honest");
    v1::Run run;
    return lossgauge_->GetRun(&context, request, &run).ok() ? run.last_step().step() : -1;
  }
  bool VerdictIsAnswered() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetVerdictRequest request;
    request.set_run("honest");
    v1::Verdict verdict;
    return lossgauge_->GetVerdict(&context, request, &verdict).ok() && !verdict.reason().empty();
  }
  double Metric(const std::string& series) { return PageValue(http_port_, series); }
  double Refused(const std::string& cause) { return Metric("lossgauge_ingest_refused_total{cause=\"" + cause + "\"}"); }
  // Of the daemon, in MiB.
  double Memory() {
    std::ifstream status("/proc/" + std::to_string(daemon_->pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
    }
    return -1;
  }
  void ExpectTheHonestRunUnharmed(double memory_growth_mib = 64) {
    EXPECT_TRUE(Eventually([&] { return VerdictIsAnswered(); })) << daemon_->Log();
    EXPECT_LT(Memory(), memory_ + memory_growth_mib);
    stop_ = true;
    job_.join();
    const auto published = static_cast<std::int64_t>(producer_->published());
    EXPECT_TRUE(Eventually([&] { return StepShown() == published - 1; })) << StepShown() << " of " << published << "\n" << daemon_->Log();
    EXPECT_EQ(Metric("lossgauge_steps_total{run=\"honest\",rank=\"0\"}"), static_cast<double>(published));
    EXPECT_EQ(Metric("lossgauge_finite_tokens_total{run=\"honest\",rank=\"0\"}"), static_cast<double>(100 * published));
    for (const char* reason : {"overrun", "torn", "checksum", "invalid", "spool"}) {
      EXPECT_EQ(Metric(std::string("lossgauge_records_lost_total{run=\"honest\",rank=\"0\",reason=\"") + reason + "\"}"), 0) << reason;
    }
  }

  ScratchDirectory directory_;
  std::unique_ptr<DaemonProcess> daemon_, sidecar_;
  std::string address_;
  int http_port_ = 0;
  std::unique_ptr<FakeProducer> producer_;
  std::unique_ptr<v1::LossGauge::Stub> lossgauge_;
  std::atomic<bool> stop_{false};
  std::thread job_;
  double memory_ = 0;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MAIN_HONEST_RUN_FIXTURE_H_
