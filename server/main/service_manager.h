// What a service of Type=notify tells systemd: datagrams to the socket that NOTIFY_SOCKET names. Started by anything else, all
// of this does nothing.
#ifndef LOSSGAUGE_SERVER_MAIN_SERVICE_MANAGER_H_
#define LOSSGAUGE_SERVER_MAIN_SERVICE_MANAGER_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace lossgauge::main {

// Sends from one thread, and never waits: what the manager does not take now is lost.
class ServiceManager {
 public:
  ServiceManager();  // reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID

  void SayReady() const { Send("READY=1"); }
  void SayStopping() const { Send("STOPPING=1"); }
  // A line for `systemctl status`; "" takes it away.
  void SayStatus(std::string_view text) const;
  // To be called at least every tick_ns() for as long as this process is to live on. Unless the unit has WatchdogSec nobody
  // listens.
  void FeedWatchdog() const;
  std::int64_t tick_ns() const;

 private:
  void Send(const std::string& message) const;

  std::string socket_;
  std::int64_t watchdog_ns_ = 0;  // 0: nobody watches
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_SERVICE_MANAGER_H_
