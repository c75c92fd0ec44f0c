#include "server/web/connection_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace lossgauge::web {
namespace {

// A whole request line and headers have come. One that is longer than this waits like those that are not complete.
bool HasHead(int socket, bool encrypted) {
  char bytes[4096];
  const ssize_t count = recv(socket, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  if (encrypted) return count > 0;
  return count > 0 && std::string_view(bytes, static_cast<std::size_t>(count)).find("\r\n\r\n") != std::string_view::npos;
}

}  // namespace

ConnectionPool::ConnectionPool(std::size_t max_threads, std::size_t max_waiting, std::function<void(int)> serve)
    : max_threads_(max_threads), max_waiting_(max_waiting), serve_(std::move(serve)) {}

ConnectionPool::~ConnectionPool() { Stop(); }

void ConnectionPool::Start(int listening_socket) {
  listening_socket_ = listening_socket;
  // A client may be gone again between poll and accept; a blocking accept would then wait for the next one, deaf to Stop.
  fcntl(listening_socket_, F_SETFL, fcntl(listening_socket_, F_GETFL) | O_NONBLOCK);
  wake_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  stopping_ = false;
  accept_thread_ = std::thread([this] { Accept(); });
}

void ConnectionPool::Stop() {
  if (!accept_thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  const std::uint64_t one = 1;
  if (write(wake_event_, &one, sizeof one) < 0) spdlog::error("cannot wake the HTTP accept thread: {}", std::strerror(errno));
  accept_thread_.join();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (const Connection& connection : waiting_) close(connection.socket);
  waiting_.clear();
  waiting_count_ = 0;
  close(listening_socket_);
  close(wake_event_);
}

void ConnectionPool::Accept() {
  bool told = false;
  while (!stopping_) {
    pollfd entries[2] = {{listening_socket_, POLLIN, 0}, {wake_event_, POLLIN, 0}};
    if (poll(entries, 2, -1) < 0 && errno != EINTR) return;
    if (stopping_) return;
    const int socket = accept4(listening_socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) {
      told = false;
      std::shared_ptr<void> slot = admit_ ? admit_(socket) : nullptr;
      if (admit_ && slot == nullptr) {
        close(socket);
      } else {
        Enqueue({socket, std::move(slot)});
      }
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!std::exchange(told, true)) spdlog::error("HTTP connections have to wait: {}; raise the limit of open files", std::strerror(errno));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the connection stays in the backlog: poll would return at once
    }
    // Everything else concerns one client that has gone again.
  }
}

void ConnectionPool::Enqueue(Connection connection) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || waiting_.size() < max_waiting_; });
  if (stopping_) {
    close(connection.socket);
    return;
  }
  waiting_.push_back(std::move(connection));
  waiting_count_ = waiting_.size();
  if (idle_threads_ < waiting_.size() && threads_.size() < max_threads_) threads_.emplace_back([this] { Work(); });
  lock.unlock();
  changed_.notify_all();
}

ConnectionPool::Connection ConnectionPool::TakeNext() {
  auto next = std::find_if(waiting_.begin(), waiting_.end(), [this](const Connection& one) { return HasHead(one.socket, encrypted_); });
  if (next == waiting_.end()) next = waiting_.begin();
  Connection connection = std::move(*next);
  waiting_.erase(next);
  return connection;
}

void ConnectionPool::Work() {
  while (true) {
    Connection connection;
    {
      std::unique_lock lock(mutex_);
      ++idle_threads_;
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      --idle_threads_;
      if (stopping_) return;
      connection = TakeNext();
      waiting_count_ = waiting_.size();
    }
    changed_.notify_all();
    serve_(connection.socket);
  }
}

}  // namespace lossgauge::web
