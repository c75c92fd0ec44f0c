// Records over TLS and mutual TLS, from a real sidecar to a real daemon, while certificates expire, are of others, or are replaced: what cannot go
// waits in the spool, and once the certificates are right the daemon has every record once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/main/daemon_process.h"
#include "tests/server/main/free_port.h"
#include "tests/server/main/page_value.h"
#include "tests/server/transport/certificates.h"
#include "tests/server/transport/token_file.h"

namespace lossgauge {
namespace {

using testing::CertificateFiles;
using testing::Certificates;
using testing::DaemonProcess;
using testing::FakeProducer;
using testing::kLoopbackNames;
using ::testing::HasSubstr;

class ForwardTlsTest : public ::testing::Test {
 protected:
  ForwardTlsTest() {
    std::filesystem::create_directory(Path("rings"));
    testing::WriteTokenFile(Path("tokens"));
    testing::FakeProducerOptions options;
    options.directory = Path("rings");
    options.run = "job";
    producer_ = std::make_unique<FakeProducer>(options);
    job_ = std::thread([this] {
      for (std::int64_t step = 0; !stop_; ++step) {
        producer_->PublishStep(step);
        producer_->Beat();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  ~ForwardTlsTest() override { EndJob(); }
  std::string Path(const std::string& name) const { return directory_ / name; }

  // The daemon's own files, which Show and Trust put in place: flags do not change.
  void StartDaemon(bool mutual = false) {
    if (port_ == 0) port_ = testing::FreePort();  // the same again after a restart
    std::vector<std::string> flags = {"daemon", "--state_dir=" + Path("daemon"), "--http_listen=127.0.0.1:0", "--grpc_listen=127.0.0.1:" + std::to_string(port_),
                                      "--token_file=" + Path("tokens"), "--tls_cert=" + Path("daemon.pem"), "--tls_key=" + Path("daemon.key")};
    if (mutual) flags.push_back("--tls_client_ca=" + Path("daemon_ca.pem"));
    const std::string log = Path("daemon" + std::to_string(++daemons_) + ".log");
    daemon_ = std::make_unique<DaemonProcess>(flags, log);
    https_ = daemon_->Address("HTTP");
    ASSERT_FALSE(https_.empty()) << daemon_->Log();
    mutual_ = mutual;
  }
  void StartSidecar(bool with_certificate = false) {
    std::vector<std::string> flags = {"sidecar",
                                      "--ring_dir=" + Path("rings"),
                                      "--state_dir=" + Path("sidecar"),
                                      "--http_listen=127.0.0.1:0",
                                      "--grpc_listen=none",
                                      "--forward_to=127.0.0.1:" + std::to_string(port_),
                                      "--forward_token_file=" + Path("tokens"),
                                      "--forward_tls_ca=" + Path("sidecar_ca.pem")};
    if (with_certificate) flags.insert(flags.end(), {"--forward_tls_cert=" + Path("sidecar.pem"), "--forward_tls_key=" + Path("sidecar.key")});
    sidecar_ = std::make_unique<DaemonProcess>(flags, Path("sidecar.log"));
    const std::string http = sidecar_->Address("HTTP");
    ASSERT_FALSE(http.empty()) << sidecar_->Log();
    sidecar_port_ = testing::PortOf(http);
  }
  // Certificate and key, one after the other, as whoever renews them does.
  void Show(const std::string& who, const CertificateFiles& files) {
    Certificates::Replace(Path(who + ".pem"), files.cert);
    Certificates::Replace(Path(who + ".key"), files.key);
  }
  void Trust(const std::string& who, const std::string& authority) { Certificates::Replace(Path(who + "_ca.pem"), authority); }

  double OfDaemon(const std::string& series) {
    httplib::SSLClient client("127.0.0.1", testing::PortOf(https_), mutual_ ? Path("operator.pem") : "", mutual_ ? Path("operator.key") : "");
    client.enable_server_certificate_verification(false);
    return testing::PageValue(&client, series);
  }
  double OfSidecar(const std::string& series) const { return testing::PageValue(sidecar_port_, series); }
  double StepsThere() { return OfDaemon("lossgauge_steps_total{run=\"job\",rank=\"0\"}"); }
  bool Connected() const { return OfSidecar("lossgauge_forward_connected{daemon=\"1\"}") == 1; }
  static bool Eventually(const std::function<bool()>& is_so) {
    for (int tries = 0; tries < 600; ++tries) {
      if (is_so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  // More steps than before get there.
  bool Flows() {
    const double before = StepsThere();
    return Eventually([&] { return StepsThere() > before + 5; });
  }
  // The sidecar has tried, more than once, and failed.
  bool IsRefused() {
    const double before = OfSidecar("lossgauge_forward_failures_total{daemon=\"1\"}");
    return Eventually([&] { return OfSidecar("lossgauge_forward_failures_total{daemon=\"1\"}") >= before + 2; }) && !Connected();
  }
  void EndJob() {
    stop_ = true;
    if (job_.joinable()) job_.join();
  }
  void ExpectEveryRecordOnce() {
    EndJob();
    const auto published = static_cast<double>(producer_->published());
    EXPECT_TRUE(Eventually([&] { return StepsThere() == published; })) << StepsThere() << " of " << published << "\n" << daemon_->Log() << sidecar_->Log();
    EXPECT_EQ(OfDaemon("lossgauge_finite_tokens_total{run=\"job\",rank=\"0\"}"), 100 * published);
    for (const char* reason : {"overrun", "torn", "checksum", "invalid", "spool"}) {
      EXPECT_EQ(OfDaemon(std::string("lossgauge_records_lost_total{run=\"job\",rank=\"0\",reason=\"") + reason + "\"}"), 0) << reason;
    }
    EXPECT_EQ(OfSidecar("lossgauge_forward_records_dropped_total{daemon=\"1\"}"), 0);
  }

  ScratchDirectory directory_;
  Certificates made_{directory_.path()};
  std::unique_ptr<DaemonProcess> daemon_, sidecar_;
  int port_ = 0, sidecar_port_ = 0, daemons_ = 0;
  std::string https_;
  bool mutual_ = false;
  std::unique_ptr<FakeProducer> producer_;
  std::atomic<bool> stop_{false};
  std::thread job_;
};

TEST_F(ForwardTlsTest, ADaemonWhoseCertificateIsWrongGetsNothingUntilItIsRight) {
  Trust("sidecar", made_.ca());
  const CertificateFiles wrong[] = {made_.Sign("expired", kLoopbackNames, "ca", -1), made_.SelfSigned("alone", kLoopbackNames),
                                    made_.Sign("elsewhere", "DNS:elsewhere.example"), made_.Sign("stranger", kLoopbackNames, "other_ca")};
  for (const CertificateFiles& files : wrong) {
    SCOPED_TRACE(files.cert);
    Show("daemon", files);
    StartDaemon();
    if (sidecar_ == nullptr) StartSidecar();
    EXPECT_TRUE(IsRefused()) << sidecar_->Log();
    EXPECT_EQ(OfDaemon("lossgauge_ingest_batches_total"), 0);
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
  }
  Show("daemon", wrong[0]);
  StartDaemon();
  EXPECT_TRUE(IsRefused());
  Show("daemon", made_.Sign("right", kLoopbackNames));  // without a restart
  EXPECT_TRUE(Flows()) << daemon_->Log() << sidecar_->Log();
  ExpectEveryRecordOnce();
}

TEST_F(ForwardTlsTest, ASidecarWhoseCertificateIsWrongIsNotHeardUntilItIsRight) {
  Trust("sidecar", made_.ca());
  Trust("daemon", made_.ca());
  Show("daemon", made_.Sign("right", kLoopbackNames));
  Show("operator", made_.Sign("ops", "DNS:ops"));
  StartDaemon(true);
  const CertificateFiles wrong[] = {made_.Sign("expired", "DNS:sidecar", "ca", -1), made_.SelfSigned("alone", "DNS:sidecar"),
                                    made_.Sign("stranger", "DNS:sidecar", "other_ca")};
  for (const CertificateFiles& files : wrong) {
    SCOPED_TRACE(files.cert);
    Show("sidecar", files);
    if (sidecar_ == nullptr) StartSidecar(true);
    EXPECT_TRUE(IsRefused()) << sidecar_->Log();
    EXPECT_EQ(OfDaemon("lossgauge_ingest_batches_total"), 0);
  }
  EXPECT_GE(OfDaemon("lossgauge_requests_refused_total{protocol=\"grpc\",cause=\"tls\"}"), 1);
  EXPECT_THAT(daemon_->Log(), HasSubstr("a TLS handshake of a gRPC client came to nothing"));
  Show("sidecar", made_.Sign("right_client", "DNS:sidecar"));
  EXPECT_TRUE(Flows()) << daemon_->Log() << sidecar_->Log();
  ExpectEveryRecordOnce();
}

TEST_F(ForwardTlsTest, ASidecarWithoutACertificateIsNotHeardWhereOneIsAskedFor) {
  Trust("sidecar", made_.ca());
  Trust("daemon", made_.ca());
  Show("daemon", made_.Sign("right", kLoopbackNames));
  Show("operator", made_.Sign("ops", "DNS:ops"));
  StartDaemon(true);
  StartSidecar(false);
  EXPECT_TRUE(IsRefused()) << sidecar_->Log();
  EXPECT_EQ(OfDaemon("lossgauge_ingest_batches_total"), 0);
}

// Another authority on both sides, step by step as an operator does it, with the connection broken at each step; records flow all the while.
TEST_F(ForwardTlsTest, CertificatesThatAreReplacedWhileRecordsFlowLoseAndDoubleNothing) {
  const std::string both = Path("both.pem");
  std::ofstream(both) << Certificates::Read(made_.ca()) << Certificates::Read(made_.other_ca());
  Trust("sidecar", made_.ca());
  Trust("daemon", made_.ca());
  Show("daemon", made_.Sign("old_daemon", kLoopbackNames));
  Show("sidecar", made_.Sign("old_sidecar", "DNS:sidecar"));
  Show("operator", made_.Sign("ops", "DNS:ops"));
  StartDaemon(true);
  StartSidecar(true);
  EXPECT_TRUE(Flows()) << daemon_->Log() << sidecar_->Log();
  const std::function<void()> steps[] = {
      [&] {
        Trust("sidecar", both);
        Trust("daemon", both);
      },
      [&] { Show("daemon", made_.Sign("new_daemon", kLoopbackNames, "other_ca")); },
      [&] { Show("sidecar", made_.Sign("new_sidecar", "DNS:sidecar", "other_ca")); },
      [&] {
        Show("operator", made_.Sign("new_ops", "DNS:ops", "other_ca"));
        Trust("sidecar", made_.other_ca());
        Trust("daemon", made_.other_ca());
      },
  };
  for (const auto& step : steps) {
    step();
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
    StartDaemon(true);
    EXPECT_TRUE(Eventually([&] { return Connected(); })) << daemon_->Log() << sidecar_->Log();
    EXPECT_TRUE(Flows()) << daemon_->Log() << sidecar_->Log();
  }
  EXPECT_GE(OfSidecar("lossgauge_forward_failures_total{daemon=\"1\"}"), 4);
  ExpectEveryRecordOnce();
}

}  // namespace
}  // namespace lossgauge
