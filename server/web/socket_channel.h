// Bytes to and from a socket, in the clear or through TLS, never waiting: ConnectionStream waits.
#ifndef LOSSGAUGE_SERVER_WEB_SOCKET_CHANNEL_H_
#define LOSSGAUGE_SERVER_WEB_SOCKET_CHANNEL_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>

namespace lossgauge::web {

// Used by one thread. Does not own the socket, which it makes non-blocking for TLS. With TLS the process must ignore SIGPIPE.
class SocketChannel {
 public:
  // `tls` null: in the clear. The handshake is part of the first Receive or Send.
  SocketChannel(int socket, const std::shared_ptr<SSL_CTX>& tls);
  ~SocketChannel();
  SocketChannel(const SocketChannel&) = delete;
  SocketChannel& operator=(const SocketChannel&) = delete;

  struct Result {
    ssize_t bytes = 0;  // > 0: done so many
    short wait_for = 0;  // POLLIN or POLLOUT: try again then; 0 with no bytes: nothing more is possible
  };
  Result Receive(char* data, std::size_t size);
  Result Send(const char* data, std::size_t size);
  // Received and decrypted already: the socket need not become readable.
  bool HasBuffered() const { return ssl_ != nullptr && SSL_pending(ssl_) > 0; }
  // A client began a handshake that did not end well.
  bool HandshakeFailed() const { return ssl_ != nullptr && began_ && SSL_is_init_finished(ssl_) == 0; }
  void CloseSending();

 private:
  Result FromSsl(int count);

  const int socket_;
  SSL* ssl_ = nullptr;
  bool began_ = false;
  bool broken_ = false;
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_SOCKET_CHANNEL_H_
