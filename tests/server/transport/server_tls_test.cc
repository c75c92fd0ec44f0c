#include "server/transport/server_tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "tests/scratch_directory.h"
#include "tests/server/transport/certificates.h"

namespace lossgauge::transport {
namespace {

using ::testing::HasSubstr;

class ServerTlsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ServerTls>> Load(const testing::CertificateFiles& files, const std::string& client_ca = "") {
    return ServerTls::Load({files.cert, files.key, client_ca}, &counters_, std::chrono::milliseconds(0));
  }
  std::string Error(const testing::CertificateFiles& files, const std::string& client_ca = "") {
    const auto tls = Load(files, client_ca);
    return std::string(tls.status().message());
  }
  ScratchDirectory directory_;
  testing::Certificates made_{directory_.path()};
  state::ServiceCounters counters_;
};

TEST_F(ServerTlsTest, SaysWhatIsWrongAndWithWhichFlag) {
  const testing::CertificateFiles good = made_.Sign("good", testing::kLoopbackNames);
  const testing::CertificateFiles other = made_.Sign("other", testing::kLoopbackNames);
  EXPECT_EQ(Error(good), "");
  EXPECT_THAT(Error({good.cert, other.key}), HasSubstr("--tls_key: " + other.key + ": does not belong to --tls_cert"));
  EXPECT_THAT(Error({good.key, good.key}), HasSubstr("--tls_cert: " + good.key + ": no certificate in PEM"));
  EXPECT_THAT(Error({good.cert, good.cert}), HasSubstr("no private key without a password"));
  EXPECT_THAT(Error({made_.Path("none"), good.key}), HasSubstr("No such file"));
  EXPECT_THAT(Error(good, good.key), HasSubstr("--tls_client_ca: " + good.key));
  chmod(good.key.c_str(), 0644);
  EXPECT_THAT(Error(good), HasSubstr("--tls_key: " + good.key + " may be read by everybody"));
}

TEST_F(ServerTlsTest, AnExpiredCertificateIsTakenAtTheStartAndShownAsSuch) {
  const auto tls = Load(made_.Sign("old", testing::kLoopbackNames, "ca", -1));
  ASSERT_TRUE(tls.ok()) << tls.status();
  EXPECT_EQ(counters_.certificate_expiry_s, 1577923200);  // 2020-01-02
}

TEST_F(ServerTlsTest, IsReplacedOnceCertificateAndKeyBelongTogether) {
  const testing::CertificateFiles live = made_.Sign("live", testing::kLoopbackNames);
  const testing::CertificateFiles next = made_.Sign("next", testing::kLoopbackNames);
  const auto tls = Load(live);
  ASSERT_TRUE(tls.ok()) << tls.status();
  const auto first = (*tls)->Current();
  EXPECT_EQ((*tls)->Current(), first);

  testing::Certificates::Replace(live.cert, next.cert);  // the key has not come yet
  EXPECT_EQ((*tls)->Current(), first);
  EXPECT_EQ((*tls)->Current(), first);
  EXPECT_EQ(counters_.tls_reload_errors, 1u);  // once, however often it is looked at

  testing::Certificates::Replace(live.key, next.key);
  const auto second = (*tls)->Current();
  EXPECT_GT(second->generation, first->generation);
  EXPECT_EQ(second->cert_pem, testing::Certificates::Read(next.cert));
  EXPECT_EQ(counters_.tls_reloads, 1u);
}

TEST_F(ServerTlsTest, NeitherAnExpiredNorABrokenOneReplacesOneThatWorks) {
  const testing::CertificateFiles live = made_.Sign("live", testing::kLoopbackNames);
  const auto tls = Load(live);
  ASSERT_TRUE(tls.ok()) << tls.status();
  const auto first = (*tls)->Current();
  const testing::CertificateFiles old = made_.Sign("old", testing::kLoopbackNames, "ca", -1);
  testing::Certificates::Replace(live.cert, old.cert);
  testing::Certificates::Replace(live.key, old.key);
  EXPECT_EQ((*tls)->Current(), first);
  std::ofstream(live.cert) << "-----BEGIN CERTIFICATE-----\nnonsense\n";
  EXPECT_EQ((*tls)->Current(), first);
  std::filesystem::remove(live.cert);
  EXPECT_EQ((*tls)->Current(), first);
  EXPECT_EQ(counters_.tls_reloads, 0u);
  EXPECT_GT(counters_.tls_reload_errors, 1u);
  EXPECT_GT(counters_.certificate_expiry_s, std::time(nullptr));
}

}  // namespace
}  // namespace lossgauge::transport
