#include "server/main/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lossgauge::main {
namespace {

constexpr std::int64_t kTickNs = 1'000'000'000;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

ServiceManager::ServiceManager() : socket_(Environment("NOTIFY_SOCKET")) {
  std::int64_t interval_us = 0, pid = 0;
  if (socket_.empty() || !absl::SimpleAtoi(Environment("WATCHDOG_USEC"), &interval_us) || interval_us <= 0) return;
  // Another process than the one that is watched may have it in its environment.
  if (const std::string watched = Environment("WATCHDOG_PID");
      !watched.empty() && (!absl::SimpleAtoi(watched, &pid) || pid != getpid()))
    return;
  watchdog_ns_ = std::min<std::int64_t>(interval_us, 3'600'000'000) * 1000;
}

void ServiceManager::SayStatus(std::string_view text) const {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');  // each line of a datagram is an assignment
  Send("STATUS=" + line);
}

void ServiceManager::FeedWatchdog() const {
  if (watchdog_ns_ > 0) Send("WATCHDOG=1");
}

std::int64_t ServiceManager::tick_ns() const {
  return watchdog_ns_ > 0 ? std::clamp<std::int64_t>(watchdog_ns_ / 4, 1'000'000, kTickNs) : kTickNs;
}

void ServiceManager::Send(const std::string& message) const {
  sockaddr_un address = {};
  if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (socket_[0] == '@') address.sun_path[0] = '\0';  // of the abstract namespace
  const int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  (void)sendto(descriptor, message.data(), message.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length);
  close(descriptor);
}

}  // namespace lossgauge::main
