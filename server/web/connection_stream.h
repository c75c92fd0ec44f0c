// One HTTP connection as cpp-httplib wants it, with what it lacks: a limit on bytes and time of a whole request, so that a client who sends
// one byte every few seconds, or headers without end, loses the connection and not a thread of ours.
#ifndef LOSSGAUGE_SERVER_WEB_CONNECTION_STREAM_H_
#define LOSSGAUGE_SERVER_WEB_CONNECTION_STREAM_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "server/web/httplib.h"

namespace lossgauge::web {

struct ConnectionLimits {
  std::chrono::milliseconds request_time{10'000};  // from the first byte of a request to its last
  std::chrono::milliseconds idle_time{5'000};      // between two requests
  std::chrono::milliseconds write_stall{5'000};    // without a byte taken by the client
  std::size_t request_bytes = 128 << 10;           // request line, headers and body
};

// Owns the socket. Used by one thread; `stopping` may be set by another and ends every wait.
class ConnectionStream final : public httplib::Stream {
 public:
  ConnectionStream(int socket, const ConnectionLimits& limits, const std::atomic<bool>& stopping);
  ~ConnectionStream() override;
  ConnectionStream(const ConnectionStream&) = delete;
  ConnectionStream& operator=(const ConnectionStream&) = delete;

  // Waits for the first byte of the next request. False: none came in the idle time, the client is gone, the server stops, or `give_way()`
  // says that others need the thread. A new connection has a fifth of that time before it has to.
  template <typename GiveWay>
  bool WaitForRequest(const GiveWay& give_way);

  // The client has closed its side. For event streams, which read nothing.
  bool PeerGone() const;

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Readiness for `events`: in slices, so that `stopping_` is seen.
  bool WaitUntil(short events, Clock::time_point deadline) const;
  bool Poll(short events, std::chrono::milliseconds slice) const;
  void BeginRequest();

  static constexpr std::chrono::milliseconds kSlice{100};

  const int socket_;
  const ConnectionLimits limits_;
  const std::atomic<bool>& stopping_;
  std::array<char, 4096> buffer_;
  std::size_t buffered_ = 0;
  std::size_t taken_ = 0;
  std::size_t request_bytes_left_ = 0;
  bool served_ = false;
  Clock::time_point request_deadline_{};
};

template <typename GiveWay>
bool ConnectionStream::WaitForRequest(const GiveWay& give_way) {
  const Clock::time_point begin = Clock::now();
  while (taken_ == buffered_ && !Poll(1 /* POLLIN */, kSlice)) {
    const Clock::duration waited = Clock::now() - begin;
    if (stopping_ || waited >= limits_.idle_time) return false;
    if (give_way() && (served_ || waited >= limits_.idle_time / 5)) return false;
  }
  served_ = true;
  BeginRequest();
  return true;
}

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_CONNECTION_STREAM_H_
