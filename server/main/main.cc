// lossgauged: see flags.cc for its command line, observer.cc for what it is made of.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <iostream>

#include "server/main/flags.h"
#include "server/main/logging.h"
#include "server/main/observer.h"
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

}  // namespace

int main(int argc, char** argv) {
  const lossgauge::main::Flags flags = lossgauge::main::ParseFlags(argc, argv);
  lossgauge::main::SetUpLogging(flags.log_format, flags.log_level);
  SetProcessLimits();
  signal(SIGPIPE, SIG_IGN);
  // Blocked before any thread is made, so that all of them leave these signals to the loop below.
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  lossgauge::main::Observer observer(flags);
  if (const absl::Status status = observer.Start(); !status.ok()) {
    spdlog::error("cannot start: {}", std::string(status.message()));
    observer.Shutdown();
    return 1;
  }
  for (;;) {
    const timespec one_second = {1, 0};
    const int signal = flags.exit_after_end ? sigtimedwait(&signals, nullptr, &one_second) : sigwaitinfo(&signals, nullptr);
    if (signal < 0) {  // interrupted, or a second is over
      if (!flags.exit_after_end || !observer.EveryProducerEnded()) continue;
      spdlog::info("ending: every producer has ended and is drained");
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
    observer.Shutdown();
    spdlog::info("ended");
    return 0;
  }
}
