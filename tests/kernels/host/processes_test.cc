// Gauges across processes: second producers, forked workers, kills and restarts.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {
namespace {

using ::testing::HasSubstr;

// Whether somebody holds the segment's lock, asked as a reader asks: from a process that holds none itself.
bool LockHeld(const std::string& steps_path) {
  const std::string path = steps_path.substr(0, steps_path.size() - 6) + ".lock";
  return InChild([&path] {
           struct flock probe {};
           probe.l_type = F_WRLCK;
           const int file = ::open(path.c_str(), O_RDONLY);
           return ::fcntl(file, F_GETLK, &probe) == 0 && probe.l_type == F_UNLCK ? 0 : 1;
         }) == 1;
}

// A process that opens a gauge, says that it is ready, and does what it is told until it is killed.
class Trainer {
 public:
  explicit Trainer(
      const lg_gauge_options& options, const std::function<void(lg_gauge*)>& body = [](lg_gauge*) {}) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      lg_gauge* gauge = nullptr;
      const int code = lg_gauge_open(&options, &gauge);
      body(gauge);
      char byte = static_cast<char>(code);
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 127;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    code_ = byte;
    ::close(ready[0]);
  }
  ~Trainer() { Kill(); }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  int code() const { return code_; }
  pid_t pid() const { return pid_; }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
  int code_;
};

std::string OpenAndReport(const lg_gauge_options& options, int* code) {
  lg_gauge* gauge = nullptr;
  *code = lg_gauge_open(&options, &gauge);
  const std::string message = *code == LG_OK ? "" : lg_last_error();
  lg_gauge_close(gauge, nullptr);
  return message;
}

// Python's package beside a C++ extension: each has the library, and statics, of its own.
TEST(SecondProducer, FromASecondCopyOfTheLibraryInTheProcessLeavesTheFirstAlive) {
  ScratchDirectory scratch;
  lg_gauge* first = nullptr;
  lg_gauge_options options = Options(scratch.path());
  ASSERT_EQ(lg_gauge_open(&options, &first), LG_OK) << lg_last_error();
  const std::string path = State(first).steps_path;
  ASSERT_TRUE(LockHeld(path));

  void* const copy = ::dlopen(LOSSGAUGE_SHARED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(copy, nullptr) << ::dlerror();
  const auto open = reinterpret_cast<decltype(&lg_gauge_open)>(::dlsym(copy, "lg_gauge_open"));
  const auto close = reinterpret_cast<decltype(&lg_gauge_close)>(::dlsym(copy, "lg_gauge_close"));
  ASSERT_NE(open, &lg_gauge_open);
  lg_gauge* second = nullptr;
  EXPECT_EQ(open(&options, &second), LG_ALREADY_EXISTS);
  EXPECT_EQ(close(second, nullptr), LG_OK);
  options.run = "another";
  EXPECT_EQ(open(&options, &second), LG_OK);
  EXPECT_TRUE(LockHeld(path)) << "a living producer looks dead";
  EXPECT_EQ(close(second, nullptr), LG_OK);
  EXPECT_TRUE(LockHeld(path));
  lg_gauge_close(first, nullptr);
}

TEST(SecondProducer, OfTheSameRunAttemptAndRankIsRefusedNamingTheFirst) {
  ScratchDirectory scratch;
  Trainer first(Options(scratch.path()));
  ASSERT_EQ(first.code(), LG_OK);
  int code;
  const std::string message = OpenAndReport(Options(scratch.path()), &code);
  EXPECT_EQ(code, LG_ALREADY_EXISTS);
  EXPECT_THAT(message, HasSubstr("process " + std::to_string(first.pid())));
  EXPECT_THAT(message, HasSubstr("started 20"));
  EXPECT_EQ(StepRings(scratch.path()).size(), 1u);
}

TEST(SecondProducer, InTheSameProcessIsRefusedUntilTheFirstIsClosed) {
  ScratchDirectory scratch;
  const lg_gauge_options options = Options(scratch.path());
  lg_gauge* first = nullptr;
  ASSERT_EQ(lg_gauge_open(&options, &first), LG_OK);
  const std::string path = State(first).steps_path;
  int code;
  OpenAndReport(options, &code);
  EXPECT_EQ(code, LG_ALREADY_EXISTS);
  EXPECT_TRUE(LockHeld(path)) << "looking for others must not drop our own lock";
  lg_gauge_close(first, nullptr);
  EXPECT_FALSE(LockHeld(path));
  OpenAndReport(options, &code);
  EXPECT_EQ(code, LG_OK);
}

TEST(SecondProducer, OfAnotherAttemptOrRankOrRunIsAdmitted) {
  ScratchDirectory scratch;
  Trainer first(Options(scratch.path()));
  int code;
  OpenAndReport(Options(scratch.path(), "run", "2"), &code);
  EXPECT_EQ(code, LG_OK);
  OpenAndReport(Options(scratch.path(), "another"), &code);
  EXPECT_EQ(code, LG_OK);
  lg_gauge_options other_rank = Options(scratch.path());
  other_rank.world_size = 2;
  other_rank.rank = 1;
  OpenAndReport(other_rank, &code);
  EXPECT_EQ(code, LG_OK);
}

TEST(SecondProducer, WithoutRankAndAttemptInTheEnvironmentIsAnAttemptOfItsOwn) {
  ScratchDirectory scratch;
  for (const char* name :
       {"RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "LOSSGAUGE_ATTEMPT", "TORCHELASTIC_RUN_ID"}) {
    ::unsetenv(name);
  }
  lg_gauge_options options = Options(scratch.path(), "run", nullptr);
  options.rank = -1;
  options.world_size = 0;
  Trainer first(options), second(options);
  EXPECT_EQ(first.code(), LG_OK);
  EXPECT_EQ(second.code(), LG_OK);
  const auto rings = StepRings(scratch.path());
  ASSERT_EQ(rings.size(), 2u);
  EXPECT_STRNE(RingFile(rings[0]).identity().attempt, RingFile(rings[1]).identity().attempt);
}

TEST(SecondProducer, AfterTheFirstWasKilledIsAdmittedAndItsRingIsKept) {
  ScratchDirectory scratch;
  Trainer first(Options(scratch.path()), [](lg_gauge* gauge) { lg_gauge_publish(gauge, nullptr); });
  const std::string path = StepRings(scratch.path()).at(0);
  EXPECT_TRUE(LockHeld(path));
  first.Kill();
  EXPECT_FALSE(LockHeld(path));
  int code;
  OpenAndReport(Options(scratch.path()), &code);
  EXPECT_EQ(code, LG_OK);
  EXPECT_EQ(RingFile(path).Records<lg_step_record>().size(), 1u) << "what it published can still be drained";
}

// Starts so many producers of one name at once and gives back what their opens returned.
std::multiset<int> RaceOfProducers(int starter_count) {
  ScratchDirectory scratch;
  int go[2], results[2];
  if (::pipe(go) != 0 || ::pipe(results) != 0) return {};
  std::vector<pid_t> starters;
  for (int i = 0; i < starter_count; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(go[1]);
      char byte;
      if (::read(go[0], &byte, 1) != 0) ::_exit(1);  // end of file: all start at once
      lg_gauge* gauge = nullptr;
      const lg_gauge_options options = Options(scratch.path());
      byte = static_cast<char>(lg_gauge_open(&options, &gauge));
      if (::write(results[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    starters.push_back(pid);
  }
  ::close(go[0]);
  ::close(go[1]);
  std::multiset<int> codes;
  for (int i = 0; i < starter_count; ++i) {
    char byte = 127;
    EXPECT_EQ(::read(results[0], &byte, 1), 1);
    codes.insert(byte);
  }
  for (const pid_t pid : starters) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ::close(results[0]);
  ::close(results[1]);
  return codes;
}

TEST(SecondProducer, StartedAtTheSameMomentAsTheFirstLosesExactlyOnce) {
  for (int round = 0; round < 20; ++round) {
    const std::multiset<int> codes = RaceOfProducers(8);
    ASSERT_EQ(codes.count(LG_OK), 1u) << "round " << round;
    ASSERT_EQ(codes.count(LG_ALREADY_EXISTS), 7u) << "round " << round;
  }
}

TEST(ForkedChild, FindsADeadGaugeThatDoesNothing) {
  ScratchDirectory scratch;
  const lg_gauge_options options = Options(scratch.path());
  lg_gauge* gauge = nullptr;
  ASSERT_EQ(lg_gauge_open(&options, &gauge), LG_OK);
  const std::string path = State(gauge).steps_path;
  lg_gauge_publish(gauge, nullptr);
  const int ended = InChild([gauge] {
    const lg_observation observation = Observation(1, 1, 1);
    if (lg_gauge_observe(gauge, &observation) != LG_FAILED_PRECONDITION) return 1;
    if (lg_gauge_publish(gauge, nullptr) != LG_FAILED_PRECONDITION) return 2;
    if (lg_gauge_set_scalar(gauge, LG_GRAD_NORM, 1) != LG_FAILED_PRECONDITION) return 3;
    if (lg_gauge_phase_begin(gauge, LG_EVALUATION) != LG_FAILED_PRECONDITION) return 4;
    if (lg_gauge_note(gauge, 1, "x") != LG_FAILED_PRECONDITION) return 5;
    lg_gauge_state state{};
    state.struct_size = sizeof state;
    if (lg_gauge_get_state(gauge, &state) != LG_OK || state.telemetry_on != 0 || state.code != LG_FAILED_PRECONDITION) return 6;
    if (lg_gauge_close(gauge, "child") != LG_FAILED_PRECONDITION) return 7;
    return 0;
  });
  EXPECT_EQ(ended, 0);
  EXPECT_TRUE(LockHeld(path)) << "the child's end must not drop the parent's lock";
  EXPECT_EQ(lg_gauge_publish(gauge, nullptr), LG_OK);
  lg_gauge_close(gauge, nullptr);
  EXPECT_EQ(RingFile(path).Records<lg_step_record>().size(), 2u);
}

TEST(ForkedChild, CannotReachItsParentsRings) {
  ScratchDirectory scratch;
  const lg_gauge_options options = Options(scratch.path());
  lg_gauge* gauge = nullptr;
  ASSERT_EQ(lg_gauge_open(&options, &gauge), LG_OK);
  const auto maps_rings = [&scratch] {
    std::ifstream maps("/proc/self/maps");
    const std::string text((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
    return text.find(scratch.path()) != std::string::npos;
  };
  EXPECT_TRUE(maps_rings());
  EXPECT_EQ(InChild([&maps_rings] { return maps_rings() ? 1 : 0; }), 0);
  lg_gauge_close(gauge, nullptr);
  EXPECT_FALSE(maps_rings());
}

TEST(ForkedChild, MayOpenAGaugeOfItsOwn) {
  ScratchDirectory scratch;
  const lg_gauge_options options = Options(scratch.path());
  lg_gauge* gauge = nullptr;
  ASSERT_EQ(lg_gauge_open(&options, &gauge), LG_OK);
  const std::string path = State(gauge).steps_path;
  EXPECT_EQ(InChild([&] {
              int code;
              OpenAndReport(options, &code);
              if (code != LG_ALREADY_EXISTS) return 1;
              OpenAndReport(Options(scratch.path(), "child"), &code);
              return code == LG_OK ? 0 : 2;
            }),
            0);
  EXPECT_TRUE(LockHeld(path));
  lg_gauge_close(gauge, nullptr);
}

TEST(ForkedChild, ThatOutlivesAKilledTrainerDoesNotKeepItAlive) {
  ScratchDirectory scratch;
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  Trainer trainer(Options(scratch.path()), [&alive](lg_gauge*) {
    if (::fork() == 0) {  // a data-loader worker: keeps every descriptor of its parent
      ::close(alive[0]);
      for (;;) ::pause();
    }
  });
  ::close(alive[1]);
  const std::string path = StepRings(scratch.path()).at(0);
  EXPECT_TRUE(LockHeld(path));
  const pid_t worker = [&] {
    // The worker is the only child of the trainer.
    std::ifstream children("/proc/" + std::to_string(trainer.pid()) + "/task/" + std::to_string(trainer.pid()) + "/children");
    pid_t pid = 0;
    children >> pid;
    return pid;
  }();
  trainer.Kill();
  EXPECT_FALSE(LockHeld(path)) << "producer_lost would never be seen";
  ASSERT_GT(worker, 0);
  EXPECT_EQ(::kill(worker, 0), 0) << "the worker outlived its trainer";
  ::kill(worker, SIGKILL);
  ::close(alive[0]);
}

TEST(KilledProducers, Of200RoundsOfOneRunLeaveTwoSegments) {
  ScratchDirectory scratch;
  Trainer other(Options(scratch.path(), "somebody else's"));
  for (int round = 0; round < 200; ++round) {
    const std::string attempt = std::to_string(round);
    Trainer trainer(Options(scratch.path(), "run", attempt.c_str()));
    ASSERT_EQ(trainer.code(), LG_OK);
    ASSERT_LE(StepRings(scratch.path()).size(), 3u) << "the live one, the newest dead one, and somebody else's";
  }
  EXPECT_TRUE(LockHeld(StepRings(scratch.path()).at(0)) || StepRings(scratch.path()).size() == 3u);
  int code;
  OpenAndReport(Options(scratch.path(), "somebody else's"), &code);
  EXPECT_EQ(code, LG_ALREADY_EXISTS) << "a live foreign segment is never touched";
}

TEST(KilledProducers, Of200RunsOfDifferentNamesStayBounded) {
  ScratchDirectory scratch;
  Trainer other(Options(scratch.path(), "somebody else's"));
  for (int round = 0; round < 200; ++round) {
    const std::string run = "run " + std::to_string(round);
    Trainer trainer(Options(scratch.path(), run.c_str()));
    ASSERT_EQ(trainer.code(), LG_OK);
  }
  EXPECT_LE(StepRings(scratch.path()).size(), 66u) << "64 dead ones, the last one, and somebody else's";
  int code;
  OpenAndReport(Options(scratch.path(), "somebody else's"), &code);
  EXPECT_EQ(code, LG_ALREADY_EXISTS);
}

}  // namespace
}  // namespace lossgauge
