#include "client/cpp/examples/train_text/launcher.h"

#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace lossgauge::train_text {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void OnStopSignal(int) { stop_requested.store(true); }

void SignalAll(const std::vector<pid_t>& pids, int signal) {
  for (const pid_t pid : pids) {
    if (pid > 0) kill(pid, signal);
  }
}

}  // namespace

const std::atomic<bool>& InstallStopSignal() {
  struct sigaction action {};
  action.sa_handler = OnStopSignal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  return stop_requested;
}

int RunRanks(RankGroup* group, double grace_seconds, const std::function<int(int rank)>& run) {
  if (group->ranks() == 1) return run(0);
  std::vector<pid_t> pids;
  const pid_t launcher = getpid();
  std::fflush(nullptr);  // or each rank would print what is still buffered here
  for (int rank = 0; rank < group->ranks(); ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);  // the launcher died before the line above
      const int code = run(rank);
      std::fflush(nullptr);
      _exit(code);
    }
    if (pid < 0) {
      std::fprintf(stderr, "%s: cannot fork rank %d: %s\n", program_invocation_short_name, rank, std::strerror(errno));
      SignalAll(pids, SIGKILL);
      for (const pid_t started : pids) waitpid(started, nullptr, 0);
      return 1;
    }
    pids.push_back(pid);
  }

  int exit_code = 0;
  std::size_t running = pids.size();
  bool forwarded = false, failed = false, terminated = false, killed = false;
  Clock::time_point failed_at;
  while (running > 0) {
    for (std::size_t rank = 0; rank < pids.size(); ++rank) {
      int status = 0;
      if (pids[rank] <= 0 || waitpid(pids[rank], &status, WNOHANG) != pids[rank]) continue;
      pids[rank] = 0;
      --running;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == 0) continue;
      if (WIFSIGNALED(status)) std::fprintf(stderr, "%s: rank %zu was ended by signal %d\n", program_invocation_short_name, rank, WTERMSIG(status));
      if (!failed) {
        failed = true;
        failed_at = Clock::now();
        exit_code = code;
      }
      group->MarkGone(static_cast<int>(rank));
    }
    if (stop_requested.load() && !forwarded) {
      forwarded = true;
      SignalAll(pids, SIGTERM);
    }
    if (failed) {
      const std::chrono::duration<double> since = Clock::now() - failed_at;
      if (!terminated && since.count() > grace_seconds) {
        terminated = true;
        SignalAll(pids, SIGTERM);
      }
      if (!killed && since.count() > grace_seconds + 5) {
        killed = true;
        SignalAll(pids, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return exit_code;
}

}  // namespace lossgauge::train_text
