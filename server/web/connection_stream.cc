#include "server/web/connection_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lossgauge::web {
namespace {

void AddressText(const sockaddr_storage& storage, std::string* ip, int* port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    *port = ntohs(v4->sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    *port = ntohs(v6->sin6_port);
  }
  *ip = text;
}

}  // namespace

std::string PeerAddress(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  std::string ip;
  int port = 0;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&storage), &length) == 0) AddressText(storage, &ip, &port);
  return ip;
}

ConnectionStream::ConnectionStream(int socket, const ConnectionLimits& limits, const std::atomic<bool>& stopping,
                                   std::function<bool()> others_wait, const std::shared_ptr<SSL_CTX>& tls)
    : socket_(socket), channel_(socket, tls), limits_(limits), stopping_(stopping), others_wait_(std::move(others_wait)) {
  // Head and body are written apart: with Nagle's algorithm the body would wait for the client's delayed acknowledgement, 40 ms.
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

ConnectionStream::~ConnectionStream() {
  // Closing with unread input would send a reset that can overtake our last answer; what is there is taken first, within reason.
  channel_.CloseSending();
  char rest[4096];
  for (int i = 0; i < 32 && recv(socket_, rest, sizeof rest, MSG_DONTWAIT) > 0; ++i) {
  }
  close(socket_);
}

Head ConnectionStream::WaitForHead() {
  input_.erase(0, taken_);
  taken_ = 0;
  const Clock::time_point begin = Clock::now();
  while (input_.empty() && !Poll(POLLIN, kSlice)) {
    const Clock::duration waited = Clock::now() - begin;
    if (stopping_ || waited >= limits_.idle_time) return Head::kNone;
    if (others_wait_() && (served_ || waited >= limits_.hurried_time)) return Head::kNone;
  }
  served_ = true;
  request_begin_ = Clock::now();
  request_bytes_left_ = limits_.request_bytes;
  std::size_t line = 0;  // where the line begins that has not ended yet
  while (true) {
    for (std::size_t end; (end = input_.find('\n', line)) != std::string::npos; line = end + 1) {
      if (end - line >= kMaxLineBytes) return line == 0 ? Head::kLineTooLong : Head::kTooLong;
      const bool crlf = end > line && input_[end - 1] == '\r';
      // The empty line ends the head. A first line without carriage return is none: cpp-httplib says so.
      if ((crlf && end == line + 1) || (line == 0 && !crlf)) return end < kMaxHeadBytes ? Head::kComplete : Head::kTooLong;
    }
    if (input_.size() - line >= kMaxLineBytes) return line == 0 ? Head::kLineTooLong : Head::kTooLong;
    if (input_.size() >= kMaxHeadBytes) return Head::kTooLong;
    if (!Receive()) return Head::kNone;
  }
}

void ConnectionStream::TakeRest() {
  channel_.CloseSending();
  const Clock::time_point deadline = Clock::now() + limits_.hurried_time;
  char rest[16384];
  for (int i = 0; i < 256 && WaitUntil(POLLIN, deadline) && recv(socket_, rest, sizeof rest, MSG_DONTWAIT) > 0; ++i) {
    if (Clock::now() >= deadline) return;
  }
}

bool ConnectionStream::Receive() {
  char bytes[4096];
  for (short events = POLLIN;;) {
    if (!WaitForInput(events)) return false;
    const SocketChannel::Result received = channel_.Receive(bytes, sizeof bytes);
    if (received.bytes > 0) {
      input_.append(bytes, static_cast<std::size_t>(received.bytes));
      return true;
    }
    // TLS may need several records, or to send, before there is a byte for us.
    if (received.wait_for == 0) return false;
    events = received.wait_for;
  }
}

bool ConnectionStream::Poll(short events, std::chrono::milliseconds slice) const {
  if ((events & POLLIN) != 0 && channel_.HasBuffered()) return true;
  pollfd entry{socket_, events, 0};
  const int ready = poll(&entry, 1, static_cast<int>(slice.count()));
  return ready > 0;  // errors and hang-ups count as ready: the call that follows reports them
}

bool ConnectionStream::WaitUntil(short events, Clock::time_point deadline) const {
  while (!stopping_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Poll(events, std::chrono::milliseconds(0));
    if (Poll(events, std::min(left, kSlice))) return true;
  }
  return false;
}

bool ConnectionStream::WaitForInput(short events) const {
  while (!stopping_) {
    const auto time = others_wait_() ? std::min(limits_.hurried_time, limits_.request_time) : limits_.request_time;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(request_begin_ + time - Clock::now());
    if (left.count() <= 0) return false;
    if (Poll(events, std::min(left, kSlice))) return true;
  }
  return false;
}

bool ConnectionStream::PeerGone() const {
  pollfd entry{socket_, POLLIN | POLLRDHUP, 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool ConnectionStream::is_readable() const { return taken_ < input_.size() || WaitForInput(POLLIN); }

bool ConnectionStream::is_writable() const { return WaitUntil(POLLOUT, Clock::now() + limits_.write_stall) && !PeerGone(); }

ssize_t ConnectionStream::read(char* data, size_t size) {
  if (request_bytes_left_ == 0) return -1;
  size = std::min(size, request_bytes_left_);
  if (taken_ == input_.size()) {
    input_.clear();
    taken_ = 0;
    if (!Receive()) return -1;
  }
  const std::size_t count = std::min(size, input_.size() - taken_);
  std::memcpy(data, input_.data() + taken_, count);
  taken_ += count;
  request_bytes_left_ -= count;
  return static_cast<ssize_t>(count);
}

ssize_t ConnectionStream::write(const char* data, size_t size) {
  std::size_t sent = 0;
  while (sent < size) {
    const SocketChannel::Result result = channel_.Send(data + sent, size - sent);
    if (result.bytes > 0) {
      sent += static_cast<std::size_t>(result.bytes);
      continue;
    }
    if (result.wait_for == 0 || !WaitUntil(result.wait_for, Clock::now() + limits_.write_stall)) return -1;
  }
  return static_cast<ssize_t>(sent);
}

void ConnectionStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&storage), &length) == 0) AddressText(storage, &ip, &port);
}

void ConnectionStream::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&storage), &length) == 0) AddressText(storage, &ip, &port);
}

}  // namespace lossgauge::web
