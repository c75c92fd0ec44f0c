// Where segments live: directories of the right owner and mode, no space, links that point elsewhere, dead segments.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/host/segment_name.h"
#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

unsigned ModeOf(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

// Opens a gauge that must come up with its telemetry off, and proves that every later call succeeds and does nothing.
std::string OpensWithTelemetryOff(const lg_gauge_options& options, int code) {
  lg_gauge* gauge = nullptr;
  EXPECT_EQ(lg_gauge_open(&options, &gauge), code) << lg_last_error();
  const std::string message = lg_last_error();
  EXPECT_NE(gauge, nullptr);
  if (gauge == nullptr) return message;
  EXPECT_EQ(State(gauge).telemetry_on, 0);
  EXPECT_EQ(State(gauge).code, code);
  EXPECT_EQ(State(gauge).message, message);
  EXPECT_STREQ(State(gauge).steps_path, "");
  const lg_observation observation = Observation(1, 1, 1);
  EXPECT_EQ(lg_gauge_observe(gauge, &observation), LG_OK);
  EXPECT_EQ(lg_gauge_set_scalar(gauge, LG_GRAD_NORM, 1), LG_OK);
  EXPECT_EQ(lg_gauge_phase_begin(gauge, LG_EVALUATION), LG_OK);
  EXPECT_EQ(lg_gauge_checkpoint_saved(gauge, 1, "x"), LG_OK);
  EXPECT_EQ(lg_gauge_publish(gauge, nullptr), LG_OK);
  EXPECT_EQ(State(gauge).dropped_calls, 5u);
  EXPECT_EQ(lg_gauge_close(gauge, nullptr), LG_OK);
  return message;
}

bool OpensWithTelemetryOn(const lg_gauge_options& options) {
  lg_gauge* gauge = nullptr;
  const bool on = lg_gauge_open(&options, &gauge) == LG_OK && State(gauge).telemetry_on == 1;
  lg_gauge_close(gauge, nullptr);
  return on;
}

TEST(SegmentName, IsTakenApartOnlyIfItIsOurs) {
  const std::uint64_t id[2] = {1, UINT64_C(0xfedcba9876543210)};
  const std::string key = SegmentKey("run", 12, id);
  EXPECT_EQ(key.substr(16), "-r12-0000000000000001fedcba9876543210");
  for (const char* suffix : {".steps", ".events", ".lock"}) EXPECT_EQ(KeyOfFile(key + suffix), key);
  for (const std::string& other :
       {key, key + ".txt", "x" + key + ".lock", key.substr(1) + ".lock", std::string(".lock"), std::string("..")}) {
    EXPECT_EQ(KeyOfFile(other), "") << other;
  }
}

TEST(SegmentDirectory, IsMadeWithItsModeWhateverTheUmask) {
  ScratchDirectory scratch;
  const std::string directory = scratch / "rings";
  EXPECT_EQ(InChild([&] {
              ::umask(077);
              return OpensWithTelemetryOn(Options(directory)) ? 0 : 1;
            }),
            0);
  EXPECT_EQ(ModeOf(directory), 0750u);
  const auto rings = StepRings(directory);
  ASSERT_EQ(rings.size(), 1u);
  EXPECT_EQ(ModeOf(rings[0]), 0640u);
  EXPECT_EQ(ModeOf(EventsPath(rings[0])), 0640u);
}

TEST(SegmentDirectory, LetsAGroupReadThatIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give files to another group";
  ScratchDirectory scratch;
  const std::string directory = scratch / "rings";
  lg_gauge_options options = Options(directory);
  options.group = "nogroup";
  ASSERT_TRUE(OpensWithTelemetryOn(options));
  struct stat status {};
  ASSERT_EQ(::stat(StepRings(directory).at(0).c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, 65534u);
  ASSERT_EQ(::stat(directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, 65534u);
  ::chmod(scratch.path().c_str(), 0711);
  // Another user of that group reads the ring; one outside of it does not.
  EXPECT_EQ(AsOrdinaryUser([&] { return ::open(StepRings(directory).at(0).c_str(), O_RDONLY) >= 0 ? 0 : 1; }), 0);
  EXPECT_EQ(InChild([&] {
              if (::setgid(12345) != 0 || ::setuid(12345) != 0) return 100;
              return ::open(directory.c_str(), O_RDONLY) < 0 ? 0 : 1;
            }),
            0);
}

TEST(SegmentDirectory, OfAnUnknownGroupIsNamed) {
  ScratchDirectory scratch;
  lg_gauge_options options = Options(scratch.path());
  options.group = "no such group";
  EXPECT_THAT(OpensWithTelemetryOff(options, LG_NOT_FOUND), HasSubstr("no such group"));
}

TEST(SegmentDirectory, ThatCannotBeMadeIsNamedWithTheUser) {
  ScratchDirectory scratch;
  ::chmod(scratch.path().c_str(), 0755);
  const std::string directory = scratch / "rings";
  EXPECT_EQ(AsOrdinaryUser([&] {
              const std::string message = OpensWithTelemetryOff(Options(directory), LG_PERMISSION_DENIED);
              return message.find(directory) != std::string::npos &&
                             message.find("uid " + std::to_string(::geteuid())) != std::string::npos
                         ? 0
                         : 1;
            }),
            ::geteuid() == 0 ? 0 : 1)
      << "an ordinary user's own scratch directory is writable, so there the ring is made";
}

TEST(SegmentDirectory, ThatMayNotBeWrittenIsNamed) {
  ScratchDirectory scratch;
  ::chmod(scratch.path().c_str(), 0555);
  const std::string path = scratch.path();
  EXPECT_EQ(AsOrdinaryUser([&] {
              const std::string message = OpensWithTelemetryOff(Options(path), LG_PERMISSION_DENIED);
              return message.find(path) != std::string::npos && !::testing::Test::HasFailure() ? 0 : 1;
            }),
            0);
  ::chmod(scratch.path().c_str(), 0755);
}

TEST(SegmentDirectory, WhoseParentIsMissingIsNamed) {
  ScratchDirectory scratch;
  EXPECT_THAT(OpensWithTelemetryOff(Options(scratch / "a/b"), LG_UNAVAILABLE), HasSubstr(scratch / "a/b"));
}

TEST(SegmentDirectory, ThatIsAFileIsNamed) {
  ScratchDirectory scratch;
  const std::string path = scratch / "file";
  std::ofstream(path) << "x";
  EXPECT_THAT(OpensWithTelemetryOff(Options(path), LG_UNAVAILABLE), HasSubstr("not a directory"));
}

TEST(SegmentDirectory, ThatIsALinkIsNotFollowed) {
  ScratchDirectory scratch, elsewhere;
  const std::string link = scratch / "link";
  ASSERT_EQ(::symlink(elsewhere.path().c_str(), link.c_str()), 0);
  OpensWithTelemetryOff(Options(link), LG_UNAVAILABLE);
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
}

TEST(SegmentDirectory, OfAStrangerInWhichEverybodyMayReplaceFilesIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to make a stranger's directory";
  ScratchDirectory scratch;
  ::chmod(scratch.path().c_str(), 0777);
  ASSERT_EQ(::chown(scratch.path().c_str(), 12345, 12345), 0);
  const std::string path = scratch.path();
  EXPECT_EQ(AsOrdinaryUser([&] {
              const std::string message = OpensWithTelemetryOff(Options(path), LG_PERMISSION_DENIED);
              return message.find("12345") != std::string::npos && message.find("0777") != std::string::npos &&
                             !::testing::Test::HasFailure()
                         ? 0
                         : 1;
            }),
            0);
}

TEST(SegmentDirectory, KeepsLinksAndFifosPlantedInItAlone) {
  ScratchDirectory scratch, elsewhere;
  const std::uint64_t id[2] = {1, 2};
  const std::string victim = elsewhere / "victim";
  std::ofstream(victim) << "precious";
  // A dead-looking segment of this very run, all of whose files point elsewhere, and a FIFO that would block an open for
  // reading.
  const std::string key = SegmentKey("run", 0, id);
  for (const char* suffix : {".steps", ".events", ".lock"}) {
    ASSERT_EQ(::symlink(victim.c_str(), (scratch / (key + suffix)).c_str()), 0);
  }
  const std::uint64_t other_id[2] = {3, 4};
  ASSERT_EQ(::mkfifo((scratch / (SegmentKey("run", 0, other_id) + ".lock")).c_str(), 0600), 0);
  ASSERT_EQ(::symlink(victim.c_str(), (scratch / (".creating-" + std::to_string(::geteuid()))).c_str()), 0);
  EXPECT_TRUE(OpensWithTelemetryOn(Options(scratch.path())));
  std::string content;
  std::ifstream(victim) >> content;
  EXPECT_EQ(content, "precious");
}

TEST(SegmentSpace, MissingByOnePageIsAnErrorAndNeverASignal) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a small tmpfs";
  ScratchDirectory scratch;
  const long page = ::sysconf(_SC_PAGESIZE);
  constexpr long kRings =
      LG_RING_HEADER_BYTES * 2 + LG_STEP_SLOT_BYTES * LG_STEP_SLOT_COUNT + LG_EVENT_SLOT_BYTES * LG_EVENT_SLOT_COUNT;
  for (const long missing_pages : {0L, 1L, 2L, kRings / page, kRings / page - 1}) {
    const std::string size = "size=" + std::to_string(kRings - missing_pages * page) + ",mode=0750";
    if (missing_pages == kRings / page) continue;  // size=0 means no limit
    if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, size.c_str()) != 0)
      GTEST_SKIP() << "mount: " << std::strerror(errno);
    const int ended = InChild([&] {
      if (missing_pages == 0) return OpensWithTelemetryOn(Options(scratch.path())) ? 0 : 1;
      const std::string message = OpensWithTelemetryOff(Options(scratch.path()), LG_RESOURCE_EXHAUSTED);
      const bool names_both =
          message.find("bytes left") != std::string::npos && message.find(std::to_string(kRings)) != std::string::npos;
      return names_both && !::testing::Test::HasFailure() ? 0 : 1;
    });
    EXPECT_EQ(ended, 0) << missing_pages << " pages missing";
    EXPECT_EQ(StepRings(scratch.path()).empty(), missing_pages != 0) << "nothing is left behind";
    ASSERT_EQ(::umount(scratch.path().c_str()), 0);
  }
}

TEST(SegmentSpace, FilledUpByOthersAfterwardsDoesNotMatter) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a small tmpfs";
  ScratchDirectory scratch;
  if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "mount: " << std::strerror(errno);
  const int ended = InChild([&] {
    lg_gauge* gauge = nullptr;
    const lg_gauge_options options = Options(scratch.path());
    if (lg_gauge_open(&options, &gauge) != LG_OK) return 1;
    std::ofstream filler(scratch / "filler");
    const std::string block(1 << 16, 'x');
    while (filler << block << std::flush) {
    }
    for (int i = 0; i < 2000; ++i) {
      if (lg_gauge_publish(gauge, nullptr) != LG_OK || lg_gauge_note(gauge, i, "n") != LG_OK) return 2;
    }
    return lg_gauge_close(gauge, nullptr) == LG_OK ? 0 : 3;
  });
  EXPECT_EQ(ended, 0);
  ::umount(scratch.path().c_str());
}

TEST(SegmentSpace, BeyondTheFileSizeLimitIsAnErrorAndNeverASignal) {
  ScratchDirectory scratch;
  EXPECT_EQ(InChild([&] {
              const rlimit limit{8192, 8192};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              OpensWithTelemetryOff(Options(scratch.path()), LG_RESOURCE_EXHAUSTED);
              return ::testing::Test::HasFailure() ? 1 : 0;
            }),
            0);
}

TEST(SegmentSpace, OnAReadOnlyFileSystemIsAnError) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a read-only tmpfs";
  ScratchDirectory scratch;
  if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", MS_RDONLY, "") != 0) GTEST_SKIP() << "mount: " << std::strerror(errno);
  OpensWithTelemetryOff(Options(scratch.path()), LG_PERMISSION_DENIED);
  OpensWithTelemetryOff(Options(scratch / "rings"), LG_PERMISSION_DENIED);
  ::umount(scratch.path().c_str());
}

}  // namespace
}  // namespace lossgauge
