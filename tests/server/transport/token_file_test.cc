#include "server/transport/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "tests/scratch_directory.h"

namespace lossgauge::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::ElementsAre;

constexpr char kFirst[] = "0123456789abcdef-first";
constexpr char kSecond[] = "0123456789abcdef-second";

class TokenFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
  }
  ScratchDirectory directory_;
  const std::string path_ = directory_.path() + "/tokens";
  state::ServiceCounters counters_;
};

TEST_F(TokenFileTest, AnyLineOfItIsGoodAndCommentsAreNone) {
  Write(std::string("# of the scheduler\n") + kFirst + "\r\n\n  " + kSecond + "\n");
  const auto file = TokenFile::Load("--token_file", path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Holds(kFirst));
  EXPECT_TRUE((*file)->Holds(kSecond));
  EXPECT_FALSE((*file)->Holds("# of the scheduler"));
  EXPECT_FALSE((*file)->Holds(""));
  EXPECT_FALSE((*file)->Holds(std::string(kFirst) + "x"));
}

TEST_F(TokenFileTest, WhatIsWrongWithItIsSaidWithTheFlag) {
  const auto error = [&](const std::string& text, mode_t mode = 0600) {
    Write(text, mode);
    return std::string(TokenFile::Load("--token_file", path_).status().message());
  };
  EXPECT_THAT(error("short\n"), HasSubstr("--token_file: " + path_ + ": the token in line 1 has 5 bytes"));
  EXPECT_THAT(error("# none\n"), HasSubstr("no token stands in it"));
  EXPECT_THAT(error(""), HasSubstr("is empty"));
  EXPECT_THAT(error("0123456789\x01" "abcdefghi\n"), HasSubstr("not printable ASCII"));
  EXPECT_THAT(error(std::string(kFirst) + "\n", 0644), HasSubstr("chmod o-r"));
  EXPECT_THAT(std::string(TokenFile::Load("--token_file", path_ + ".no").status().message()), HasSubstr("No such file"));
  EXPECT_THAT(std::string(TokenFile::Load("--token_file", directory_.path()).status().message()), HasSubstr("not a regular file"));
}

TEST_F(TokenFileTest, IsReadAgainWhenReplacedAndKeptWhenBroken) {
  Write(kFirst);
  const auto file = TokenFile::Load("--token_file", path_);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Holds(kFirst));
  const auto until = [&](const std::string& token, bool held, int tries = 200) {
    for (int i = 0; i < tries && (*file)->Holds(token) != held; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return (*file)->Holds(token) == held;
  };
  Write(kSecond);
  EXPECT_TRUE(until(kSecond, true));
  EXPECT_FALSE((*file)->Holds(kFirst));
  Write("short");
  EXPECT_FALSE(until(kSecond, false, 30));
}

TEST_F(TokenFileTest, TheGuardAsksForATokenWhereThereIsAFile) {
  Write(kFirst);
  const auto file = TokenFile::Load("--token_file", path_);
  ASSERT_TRUE(file.ok());
  for (const bool loopback : {true, false}) {
    const WriteGuard guard(state::Protocol::kGrpc, file->get(), loopback, &counters_);
    EXPECT_TRUE(guard.Check(std::string("Bearer ") + kFirst).ok());
    EXPECT_TRUE(guard.Check(std::string("bEARER  ") + kFirst + " ").ok());
    EXPECT_EQ(guard.Check("").code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(guard.Check(kFirst).code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(guard.Check("Bearer wrong").code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(guard.Check(std::string("Basic ") + kFirst).code(), absl::StatusCode::kUnauthenticated);
  }
  EXPECT_EQ(counters_.Refused(state::Protocol::kGrpc, state::Refusal::kToken), 8u);
}

TEST_F(TokenFileTest, WithoutAFileOnlyLoopbackWrites) {
  EXPECT_TRUE(WriteGuard(state::Protocol::kHttp, nullptr, true, &counters_).Check("").ok());
  const absl::Status status = WriteGuard(state::Protocol::kHttp, nullptr, false, &counters_).Check(std::string("Bearer ") + kFirst);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--token_file"));
  EXPECT_EQ(counters_.Refused(state::Protocol::kHttp, state::Refusal::kReadOnly), 1u);
}

}  // namespace
}  // namespace lossgauge::transport
