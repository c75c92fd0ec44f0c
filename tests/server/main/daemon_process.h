// lossgauged as a real process, for tests of its command line, its signals and its death.
#ifndef LOSSGAUGE_TESTS_SERVER_MAIN_DAEMON_PROCESS_H_
#define LOSSGAUGE_TESTS_SERVER_MAIN_DAEMON_PROCESS_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lossgauge::testing {

class DaemonProcess {
 public:
  // Output of both streams goes to `log_path`, appended.
  DaemonProcess(std::vector<std::string> arguments, std::string log_path) : log_path_(std::move(log_path)) {
    arguments.insert(arguments.begin(), LOSSGAUGED_PATH);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(log, 1);
      dup2(log, 2);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    close(log);
  }
  ~DaemonProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  void Signal(int signal) { kill(pid_, signal); }
  // Exit code, or 128 + signal.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // -1 if it has not ended in time.
  int WaitFor(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    do {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } while (std::chrono::steady_clock::now() < deadline);
    return -1;
  }
  std::string Log() const {
    std::ifstream file(log_path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Waits until the log holds `text`; false if the process ends or a generous time passes first.
  bool WaitForLog(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (Log().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      siginfo_t info = {};
      if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_) {
        return Log().find(text) != std::string::npos;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  // The address after "gRPC on " or "HTTP on " in the log.
  std::string Address(const std::string& server) {
    if (!WaitForLog(server + " on ")) return "";
    const std::string log = Log();
    const std::size_t begin = log.rfind(server + " on ") + server.size() + 4;
    return log.substr(begin, log.find('\n', begin) - begin);
  }
  pid_t pid() const { return pid_; }

 private:
  const std::string log_path_;
  pid_t pid_ = -1;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MAIN_DAEMON_PROCESS_H_
