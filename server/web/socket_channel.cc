#include "server/web/socket_channel.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace lossgauge::web {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int Bounded(std::size_t size) { return static_cast<int>(std::min<std::size_t>(size, INT_MAX)); }

}  // namespace

SocketChannel::SocketChannel(int socket, const std::shared_ptr<SSL_CTX>& tls) : socket_(socket) {
  if (tls == nullptr) return;
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
  ssl_ = SSL_new(tls.get());  // holds the context
  broken_ = ssl_ == nullptr || SSL_set_fd(ssl_, socket_) != 1;
  if (!broken_) SSL_set_accept_state(ssl_);
}

SocketChannel::~SocketChannel() {
  SSL_free(ssl_);
  ERR_clear_error();
}

SocketChannel::Result SocketChannel::Receive(char* data, std::size_t size) {
  if (broken_) return {};
  if (ssl_ != nullptr) return FromSsl(SSL_read(ssl_, data, Bounded(size)));
  const ssize_t count = recv(socket_, data, size, MSG_DONTWAIT);
  if (count > 0) return {count, 0};
  return {0, static_cast<short>(count < 0 && WouldBlock(errno) ? POLLIN : 0)};
}

SocketChannel::Result SocketChannel::Send(const char* data, std::size_t size) {
  if (broken_) return {};
  if (ssl_ != nullptr) return FromSsl(SSL_write(ssl_, data, Bounded(size)));
  const ssize_t count = send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) return {count, 0};
  return {0, static_cast<short>(count < 0 && WouldBlock(errno) ? POLLOUT : 0)};
}

SocketChannel::Result SocketChannel::FromSsl(int count) {
  began_ = true;
  if (count > 0) return {count, 0};
  const int error = SSL_get_error(ssl_, count);
  ERR_clear_error();  // the queue is the thread's, and the next connection's errors must not be taken for this one's
  if (error == SSL_ERROR_WANT_READ) return {0, POLLIN};
  if (error == SSL_ERROR_WANT_WRITE) return {0, POLLOUT};
  broken_ = error != SSL_ERROR_ZERO_RETURN;  // nothing may be sent on it any more, not even a farewell
  return {};
}

void SocketChannel::CloseSending() {
  if (ssl_ != nullptr && !broken_ && SSL_is_init_finished(ssl_) != 0) SSL_shutdown(ssl_);
  ERR_clear_error();
  shutdown(socket_, SHUT_WR);
}

}  // namespace lossgauge::web
