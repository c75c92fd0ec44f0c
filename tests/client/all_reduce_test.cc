#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <vector>

#include "client/cpp/examples/train_text/all_reduce.h"
#include "client/cpp/examples/train_text/launcher.h"

namespace lossgauge::train_text {
namespace {

// Forks the ranks; each returns true for success. The result has one entry per rank: its exit code, or 128 + signal.
std::vector<int> RunEach(RankGroup* group, const std::function<bool(int rank)>& run) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    const pid_t pid = fork();
    if (pid == 0) _exit(run(rank) ? 0 : 1);
    pids.push_back(pid);
  }
  std::vector<int> codes;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

std::unique_ptr<RankGroup> Group(int ranks, std::size_t floats, double timeout_seconds) {
  std::string error;
  auto group = RankGroup::Create(ranks, floats, timeout_seconds, &error);
  EXPECT_EQ(error, "");
  return group;
}

TEST(RankGroup, SumsFloatsAndScalarsOverRanksManyTimes) {
  constexpr int kRanks = 3;
  constexpr std::size_t kFloats = 1001;
  auto group = Group(kRanks, kFloats, 30);
  const auto codes = RunEach(group.get(), [&](int rank) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> values(kFloats);
      for (std::size_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(static_cast<int>(i) + 1000 * rank + round);
      double doubles[] = {static_cast<double>(rank), 1.0};
      std::uint64_t words[] = {std::uint64_t{1} << 63, static_cast<std::uint64_t>(rank)};
      if (!group->Sum(rank, std::span<float>(values)).empty() || !group->Sum(rank, std::span<double>(doubles)).empty() ||
          !group->Sum(rank, std::span<std::uint64_t>(words)).empty()) {
        return false;
      }
      for (std::size_t i = 0; i < kFloats; ++i) {
        if (values[i] != static_cast<float>(3 * static_cast<int>(i) + 3000 + 3 * round)) return false;
      }
      if (doubles[0] != 3 || doubles[1] != 3 || words[0] != std::uint64_t{1} << 63 || words[1] != 3) return false;
    }
    return true;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0}));
}

TEST(RankGroup, NamesTheRankThatDoesNotComeAndStaysBroken) {
  auto group = Group(3, 8, 2);
  const auto codes = RunEach(group.get(), [&](int rank) {
    if (!group->Barrier(rank).empty()) return false;
    if (rank == 1) return true;  // never arrives again
    const std::string first = group->Barrier(rank), second = group->Barrier(rank);
    return first == "all-reduce: did not arrive within 2 s: rank 1" && second == first;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0, 0}));
}

TEST(RankGroup, OutlivesARankThatIsKilledInTheMiddleOfASum) {
  auto group = Group(2, 8, 2);
  const auto codes = RunEach(group.get(), [&](int rank) {
    std::vector<float> values(8, 1.0f);
    if (!group->Sum(rank, std::span<float>(values)).empty()) return false;
    if (rank == 1) std::raise(SIGKILL);
    return group->Sum(rank, std::span<float>(values)).find("rank 1") != std::string::npos;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(RankGroup, WakesWaitersWhenARankIsMarkedGoneLongBeforeTheTimeout) {
  auto group = Group(2, 8, 3600);  // the test's own time limit would catch a wait for this
  const auto codes = RunEach(group.get(), [&](int rank) {
    if (rank == 1) {
      group->MarkGone(1);
      return true;
    }
    return group->Barrier(rank) == "all-reduce: gone for good: rank 1";
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
}

TEST(RankGroup, RefusesMoreThanItWasMadeFor) {
  auto group = Group(2, 16, 1);
  std::vector<float> values(17);
  EXPECT_NE(group->Sum(0, std::span<float>(values)), "");
}

TEST(RunRanks, GivesTheExitCodeOfTheFirstFailureAndTellsTheOthers) {
  auto group = Group(3, 8, 3600);
  const int code = RunRanks(group.get(), 30, [&](int rank) {
    if (rank == 2) return 7;
    return group->Barrier(rank) == "all-reduce: gone for good: rank 2" ? 0 : 9;
  });
  EXPECT_EQ(code, 7);
}

TEST(RunRanks, EndsARankThatDoesNotEndByItself) {
  auto group = Group(2, 8, 3600);
  const int code = RunRanks(group.get(), 0.1, [&](int rank) {
    if (rank == 0) return 5;
    std::signal(SIGTERM, SIG_DFL);
    for (;;) pause();
  });
  EXPECT_EQ(code, 5);
}

}  // namespace
}  // namespace lossgauge::train_text
