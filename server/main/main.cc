// lossgauged: see flags.cc for its command line, observer.cc for what it is made of.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <iostream>

#include "server/main/flags.h"
#include "server/main/logging.h"
#include "server/main/observer.h"
#include "server/main/service_manager.h"
#include "spdlog/spdlog.h"

namespace {

// Files of ours are not for everybody, a core would hold other people's run names, and streams need descriptors.
void SetProcessLimits() {
  umask(027);
  const rlimit no_core = {0, 0};
  (void)setrlimit(RLIMIT_CORE, &no_core);
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 16'384);
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
}

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// The drain thread cannot say that it stands still: this one does, once in the log and to systemd, which starts a process that
// hangs again.
class DrainReporter {
 public:
  DrainReporter(const lossgauge::main::Observer* observer, const lossgauge::main::ServiceManager* manager)
      : observer_(observer), manager_(manager) {}

  void Look() {
    const absl::Status ready = observer_->CheckReady();
    if (ready.ok() && !was_ready_) {
      spdlog::info("ready again: the drain thread goes on");
      manager_->SayStatus("");
    } else if (!ready.ok()) {
      if (was_ready_) spdlog::error("not ready: {}", std::string(ready.message()));
      manager_->SayStatus("not ready: " + std::string(ready.message()));
    }
    was_ready_ = ready.ok();
    const absl::Status healthy = observer_->CheckNotHung();
    if (healthy.ok()) {
      manager_->FeedWatchdog();
    } else if (was_healthy_) {
      spdlog::error("not healthy: {}; where systemd watches this process, it will start it again",
                    std::string(healthy.message()));
    }
    was_healthy_ = healthy.ok();
  }

 private:
  const lossgauge::main::Observer* const observer_;
  const lossgauge::main::ServiceManager* const manager_;
  bool was_ready_ = true;
  bool was_healthy_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  const lossgauge::main::Flags flags = lossgauge::main::ParseFlags(argc, argv);
  lossgauge::main::SetUpLogging(flags.log_format, flags.log_level);
  SetProcessLimits();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is an error of the write, like a full disk
  // Blocked before any thread is made, so that all of them leave these signals to the loop below.
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  lossgauge::main::Observer observer(flags);
  if (const absl::Status status = observer.Start(); !status.ok()) {
    spdlog::error("cannot start: {}", std::string(status.message()));
    observer.Shutdown();
    return 1;
  }
  const lossgauge::main::ServiceManager manager;
  manager.SayReady();
  DrainReporter reporter(&observer, &manager);
  for (;;) {
    const timespec tick = {manager.tick_ns() / 1'000'000'000, manager.tick_ns() % 1'000'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &tick);
    reporter.Look();
    if (signal < 0) {  // interrupted, or a tick is over
      if (!flags.exit_after_end || !observer.EveryProducerEnded()) continue;
      spdlog::info("ending: every producer has ended and is drained");
      manager.SayStopping();
      observer.Shutdown();
      return 0;
    }
    if (signal == SIGHUP) {
      const absl::Status status = observer.ReloadPolicy();
      if (status.ok()) {
        spdlog::info("policy read again");
      } else {
        spdlog::error("SIGHUP: the policy stays as it is: {}", std::string(status.message()));
      }
      continue;
    }
    spdlog::info("ending on {}", signal == SIGTERM ? "SIGTERM" : "SIGINT");
    manager.SayStopping();
    observer.Shutdown();
    spdlog::info("ended");
    return 0;
  }
}
