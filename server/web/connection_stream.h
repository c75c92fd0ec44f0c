// One HTTP connection as cpp-httplib wants it, with what it lacks: a limit on bytes and time of a whole request, so that a client who sends
// one byte every few seconds, or headers without end, loses the connection and not a thread of ours.
#ifndef LOSSGAUGE_SERVER_WEB_CONNECTION_STREAM_H_
#define LOSSGAUGE_SERVER_WEB_CONNECTION_STREAM_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "server/transport/httplib.h"
#include "server/web/socket_channel.h"

namespace lossgauge::web {

struct ConnectionLimits {
  std::chrono::milliseconds request_time{10'000};  // from the first byte of a request to its last
  std::chrono::milliseconds hurried_time{500};     // the same while others wait for the thread, and for a first byte
  std::chrono::milliseconds idle_time{5'000};      // between two requests
  std::chrono::milliseconds write_stall{5'000};    // without a byte taken by the client
  std::size_t request_bytes = 128 << 10;           // request line, headers and body
};

// The client's address, without its port; "" if it is gone.
std::string PeerAddress(int socket);

enum class Head { kComplete, kNone, kLineTooLong, kTooLong };

// Owns the socket. Used by one thread; `stopping` may be set by another and ends every wait.
class ConnectionStream final : public httplib::Stream {
 public:
  // `others_wait` says that the thread is needed elsewhere; it is asked during every wait for the client to send. `tls` null: in the clear.
  ConnectionStream(int socket, const ConnectionLimits& limits, const std::atomic<bool>& stopping, std::function<bool()> others_wait,
                   const std::shared_ptr<SSL_CTX>& tls = nullptr);
  ~ConnectionStream() override;
  ConnectionStream(const ConnectionStream&) = delete;
  ConnectionStream& operator=(const ConnectionStream&) = delete;

  // Waits for the first byte of the next request, then for the rest of its line and headers, which read() gives afterwards. kNone: none came
  // in time, the client is gone, the server stops, or others need the thread; a new connection has the hurried time before it has to leave.
  Head WaitForHead();

  // After an answer to a request that was not read to its end: takes what the client still sends, within the hurried time and reason, because
  // closing with unread input sends a reset that can overtake the answer.
  void TakeRest();

  bool HandshakeFailed() const { return channel_.HandshakeFailed(); }

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
  // Readiness within the request's time, which shrinks while others wait.
  bool WaitForInput(short events) const;
  bool Poll(short events, std::chrono::milliseconds slice) const;
  // False: nothing more comes.
  bool Receive();

  // What cpp-httplib takes; it answers longer headers with a bare 400.
  static constexpr std::size_t kMaxLineBytes = 8192;
  static constexpr std::size_t kMaxHeadBytes = 64 << 10;
  static constexpr std::chrono::milliseconds kSlice{100};

  const int socket_;
  SocketChannel channel_;
  const ConnectionLimits limits_;
  const std::atomic<bool>& stopping_;
  const std::function<bool()> others_wait_;
  std::string input_;       // received
  std::size_t taken_ = 0;   // of it, by read()
  std::size_t request_bytes_left_ = 0;
  bool served_ = false;
  Clock::time_point request_begin_{};
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_CONNECTION_STREAM_H_
