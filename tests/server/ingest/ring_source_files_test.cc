// Files that are no rings, no longer rings, or not for this process to read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "server/ingest/ring_file.h"
#include "tests/server/ingest/ring_source_fixture.h"

namespace lossgauge::ingest {
namespace {

using testing::FakeProducer;
using testing::FakeProducerOptions;

// Each header that cannot be read is named, counted once, and tried again.
TEST_F(RingSourceTest, RefusesForeignHeadersByCause) {
  const struct {
    const char* cause;
    std::function<void(lg_ring_identity*)> edit;
  } cases[] = {
      {"bad_magic", [](lg_ring_identity* id) { id->magic = 1234; }},
      {"other_major", [](lg_ring_identity* id) { id->abi_major = 2; }},
      {"other_major", [](lg_ring_identity* id) { id->abi_major = 0; }},
      {"other_byte_order", [](lg_ring_identity* id) { id->byte_order = __builtin_bswap32(LG_RING_BYTE_ORDER); }},
      {"unknown_kind", [](lg_ring_identity* id) { id->kind = 9; }},
      {"bad_sizes", [](lg_ring_identity* id) { id->record_words = 7; }},
      {"bad_layout", [](lg_ring_identity* id) { id->layout.rank = id->layout.world_size; }},
      {"bad_layout", [](lg_ring_identity* id) { id->layout.tp = {2, 2}; }},
      {"bad_layout", [](lg_ring_identity* id) { id->layout.dp.size = 0; }},
  };
  for (const auto& c : cases) {
    const std::uint64_t before = Errors(c.cause);
    FakeProducerOptions options = Options();
    options.edit_identity = c.edit;
    FakeProducer producer(options);
    Poll(3);
    Poll(10);
    Poll(10);
    EXPECT_EQ(Errors(c.cause), before + 1) << c.cause;
    EXPECT_EQ(source().stats().rings_attached, 0u) << c.cause;
  }
}

TEST_F(RingSourceTest, AcceptsANewerMinor) {
  FakeProducerOptions options = Options();
  options.edit_identity = [](lg_ring_identity* id) { id->abi_minor = LG_RING_ABI_MINOR + 1; };
  FakeProducer producer(options);
  producer.PublishStep(0);
  Poll();
  EXPECT_EQ(sink_.samples.size(), 1u);
}

TEST_F(RingSourceTest, AnUnfinishedFileIsNotAnErrorButTriedAgain) {
  FakeProducer producer(Options());
  producer.PublishStep(3);
  // The header as it was before the producer stored `ready`.
  const int fd = open(producer.steps_path().c_str(), O_RDWR);
  std::uint64_t ready = 0, zero = 0;
  ASSERT_EQ(pread(fd, &ready, 8, offsetof(lg_ring_header, ready)), 8);
  ASSERT_EQ(pwrite(fd, &zero, 8, offsetof(lg_ring_header, ready)), 8);
  Poll();
  EXPECT_EQ(source().stats().rings_attached, 0u);
  EXPECT_EQ(Errors("not_ready"), 1u);
  ASSERT_EQ(pwrite(fd, &ready, 8, offsetof(lg_ring_header, ready)), 8);
  close(fd);
  Poll(10);
  EXPECT_EQ(sink_.samples.size(), 1u);
}

TEST_F(RingSourceTest, RefusesFilesThatAreNoRings) {
  WriteFile("a.steps", "");
  WriteFile("b.steps", "short");
  WriteFile("c.steps", std::string(5000, 'x'));
  std::filesystem::create_directory(directory_.path() + "/d.steps");
  std::filesystem::create_symlink("/etc/passwd", directory_.path() + "/e.steps");
  ASSERT_EQ(mkfifo((directory_.path() + "/f.steps").c_str(), 0600), 0);
  Poll();
  Poll(10);
  EXPECT_EQ(Errors("no_content"), 1u);
  EXPECT_EQ(Errors("too_short"), 1u);
  EXPECT_EQ(Errors("bad_magic"), 1u);
  EXPECT_EQ(Errors("not_a_file"), 2u);
  EXPECT_EQ(Errors("symbolic_link"), 1u);
}

TEST_F(RingSourceTest, AFileThatWasCutIsRefused) {
  FakeProducer producer(Options());
  ASSERT_EQ(truncate(producer.steps_path().c_str(), LG_RING_HEADER_BYTES + 100), 0);
  Poll();
  EXPECT_EQ(Errors("truncated"), 1u);
}

// A shared mapping of a file that shrinks raises SIGBUS at the next read of the lost page.
TEST_F(RingSourceTest, SurvivesAFileThatShrinksUnderItsMapping) {
  FakeProducer producer(Options(0));
  FakeProducer healthy(Options(1));
  producer.PublishSteps(0, 9);
  Poll();
  const std::uint64_t caught = BusFaultsCaught();
  ASSERT_EQ(truncate(producer.steps_path().c_str(), 0), 0);
  healthy.PublishSteps(0, 4);
  Poll(1.1);
  EXPECT_GT(BusFaultsCaught(), caught);
  EXPECT_EQ(Errors("truncated"), 1u);
  EXPECT_EQ(sink_.samples.size(), 15u) << "nothing else stops";
  Poll(1.1);
  EXPECT_EQ(Errors("truncated"), 1u);
}

TEST_F(RingSourceTest, ASegmentThatWasLeftAloneIsForgottenWithItsFile) {
  FakeProducer producer(Options());
  producer.PublishStep(0);
  producer.Die();
  Poll();
  ASSERT_EQ(sink_.producers.size(), 1u);
  sink_.cursors[sink_.producers[0]->segment].ended = true;  // its run was let go
  Poll();
  std::filesystem::remove(producer.steps_path());
  Poll(3);
  ASSERT_EQ(sink_.gone.size(), 1u);
  EXPECT_EQ(sink_.gone[0], sink_.producers[0]->segment);
}

// As root nothing is unreadable: the look is taken by a child that has put root's powers down.
TEST(RingSourcePermissions, AnUnreadableDirectoryIsNamedAndMakesTheSourceUnreachable) {
  spdlog::set_level(spdlog::level::off);
  ScratchDirectory directory;
  const std::string closed = directory.path() + "/closed";
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(mkdir(closed.c_str(), 0), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(10);
    testing::ManualClock clock;
    testing::RecordingSink sink;
    RingSourceOptions options;
    options.directories = {closed};
    RingSource source(options, &clock);
    source.Poll(sink, sink, clock.NowNs());
    clock.Advance(10 * kSecond);
    source.Poll(sink, sink, clock.NowNs());
    const auto& errors = source.stats().errors;
    const auto it = errors.find("directory_unreadable");
    // Only what is in the closed directory is out of reach.
    state::ProducerInfo inside, elsewhere;
    inside.ring_path = closed + "/a.steps";
    elsewhere.ring_path = directory.path() + "/open/a.steps";
    if (source.Reaches(inside)) _exit(2);
    if (!source.Reaches(elsewhere)) _exit(3);
    _exit(!source.stats().reachable && it != errors.end() && it->second == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_EQ(chmod(closed.c_str(), 0700), 0);
}

// Whose file it is and who asks, in one sentence.
TEST(RingSourcePermissions, AnUnreadableRingIsRefusedWithOwnerAndMode) {
  ScratchDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  const std::string path = directory.path() + "/a.steps";
  std::ofstream(path) << std::string(5000, 'x');
  ASSERT_EQ(chmod(path.c_str(), 0200), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(10);
    const RingFileResult result = OpenRingFile(path, LG_RING_KIND_STEPS);
    const bool named = result.message.find(path) != std::string::npos && result.message.find("mode 0200") != std::string::npos &&
                       result.message.find("this process is") != std::string::npos;
    // An owner that may not read its own file is told apart from a stranger by nothing but the numbers.
    _exit(result.cause == "permission_denied" && named && !result.is_pending ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace lossgauge::ingest
