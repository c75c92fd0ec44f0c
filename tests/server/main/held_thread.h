// Holds one thread of a child process, as a disk or a fault of its own would, until it is let go.
#ifndef LOSSGAUGE_TESTS_SERVER_MAIN_HELD_THREAD_H_
#define LOSSGAUGE_TESTS_SERVER_MAIN_HELD_THREAD_H_

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace lossgauge::testing {

class HeldThread {
 public:
  // The thread of that name. held() is false where this system lets nobody trace a child.
  HeldThread(pid_t process, const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      std::string found;
      std::ifstream comm(task.path() / "comm");
      std::getline(comm, found);
      if (found == name) thread_ = std::stoi(task.path().filename());
    }
    if (thread_ < 0 || ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0) return;
    // Only where it waits of itself: between that it may have a lock that those need who are to answer meanwhile.
    for (int tries = 0; tries < 10'000 && Stop() && !Waits(); ++tries) {
      ptrace(PTRACE_CONT, thread_, nullptr, nullptr);
      held_ = false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~HeldThread() { Release(); }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

  bool held() const { return held_; }
  void Release() {
    if (held_) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
    held_ = false;
  }

 private:
  bool Stop() {
    int status = 0;
    held_ = ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 && waitpid(thread_, &status, __WALL) == thread_ &&
            WIFSTOPPED(status);
    return held_;
  }
  bool Waits() const {
    long call = -1;
    std::ifstream("/proc/" + std::to_string(thread_) + "/syscall") >> call;
    return call == SYS_futex;
  }

  pid_t thread_ = -1;
  bool held_ = false;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MAIN_HELD_THREAD_H_
