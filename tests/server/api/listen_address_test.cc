#include "server/api/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace lossgauge::api {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddress, ReadsHostsAndPorts) {
  EXPECT_EQ(ParseListenAddress("127.0.0.1:9788")->host, "127.0.0.1");
  EXPECT_EQ(ParseListenAddress("127.0.0.1:9788")->port, 9788);
  EXPECT_EQ(ParseListenAddress("[::1]:0")->Text(), "[::1]:0");
  EXPECT_EQ(ParseListenAddress(":80")->host, "");
}

TEST(ListenAddress, SaysWhatIsWrongWithOne) {
  const auto message = [](const std::string& text) { return std::string(ParseListenAddress(text).status().message()); };
  EXPECT_THAT(message("localhost"), HasSubstr("no port"));
  EXPECT_THAT(message("::1:80"), HasSubstr("brackets"));
  EXPECT_THAT(message("[::1:80"), HasSubstr("bracket"));
  EXPECT_THAT(message("[nonsense]:80"), HasSubstr("no IPv6 address"));
  for (const char* text : {"a:", "a:65536", "a:-1", "a:+1", "a: 1", "a:http", "a:99999999999999999999"}) {
    EXPECT_THAT(message(text), HasSubstr("0 to 65535")) << text;
  }
}

TEST(ListenAddress, KnowsLoopback) {
  EXPECT_TRUE(IsLoopback({"127.0.0.1", 1}));
  EXPECT_TRUE(IsLoopback({"127.9.9.9", 1}));
  EXPECT_TRUE(IsLoopback({"::1", 1}));
  EXPECT_FALSE(IsLoopback({"0.0.0.0", 1}));
  EXPECT_FALSE(IsLoopback({"::", 1}));
  EXPECT_FALSE(IsLoopback({"", 1}));
  EXPECT_FALSE(IsLoopback({"10.0.0.1", 1}));
}

// Case D1 and D2: a port that is taken is an error that names address and errno, never a share of it.
TEST(ListenAddress, APortThatIsTakenIsAnErrorWithAddressAndErrno) {
  const auto first = OpenListeningSocket({"127.0.0.1", 0}, 8, "HTTP", "--http_listen");
  ASSERT_TRUE(first.ok()) << first.status();
  const std::uint16_t port = BoundPort(*first);
  ASSERT_NE(port, 0);
  int reuse_port = 1;
  socklen_t length = sizeof reuse_port;
  ASSERT_EQ(getsockopt(*first, SOL_SOCKET, SO_REUSEPORT, &reuse_port, &length), 0);
  EXPECT_EQ(reuse_port, 0);

  const auto second = OpenListeningSocket({"127.0.0.1", port}, 8, "HTTP", "--http_listen");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(second.status().message());
  EXPECT_THAT(message, HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(message, HasSubstr("errno " + std::to_string(EADDRINUSE)));
  EXPECT_THAT(message, HasSubstr("--http_listen"));
  close(*first);
}

TEST(ListenAddress, AnAddressThatIsNotOfThisMachineIsAnErrorToo) {
  const auto socket = OpenListeningSocket({"192.0.2.1", 0}, 8, "gRPC", "--grpc_listen");  // reserved for documentation
  ASSERT_FALSE(socket.ok());
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("192.0.2.1:0"));
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("errno"));
}

TEST(ListenAddress, AHostThatCannotBeResolvedIsNamed) {
  const auto socket = OpenListeningSocket({"no-such-host.invalid", 1}, 8, "gRPC", "--grpc_listen");
  ASSERT_FALSE(socket.ok());
  EXPECT_THAT(std::string(socket.status().message()), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace lossgauge::api
