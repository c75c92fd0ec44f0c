// host:port as flags give it, for both servers.
#ifndef LOSSGAUGE_SERVER_API_LISTEN_ADDRESS_H_
#define LOSSGAUGE_SERVER_API_LISTEN_ADDRESS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lossgauge::api {

struct ListenAddress {
  std::string host;  // without brackets
  std::uint16_t port = 0;  // 0 = any free port
  std::string Text() const;  // "127.0.0.1:9789", "[::1]:9789"
  ListenAddress WithPort(std::uint16_t other) const { return {host, other}; }
};

// Text like "127.0.0.1:9788", "[::1]:9788", "localhost:0", ":9788" (all interfaces). INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

// Names are resolved: true only if every address they stand for is a loopback address.
bool IsLoopback(const ListenAddress& address);

// A bound, listening TCP socket (close-on-exec, SO_REUSEPORT off, SO_REUSEADDR on), or UNAVAILABLE with address, reason and errno.
// `what` names the server in the error ("gRPC", "HTTP"), `flag` the flag that chooses another address.
absl::StatusOr<int> OpenListeningSocket(const ListenAddress& address, int backlog, const std::string& what, const std::string& flag);

// The port that a socket is bound to.
std::uint16_t BoundPort(int socket);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_LISTEN_ADDRESS_H_
