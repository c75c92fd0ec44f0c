#include "server/api/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// `error` is set where the list is empty.
AddressList Resolve(const ListenAddress& address, std::string* error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  const int code = getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), port.c_str(), &hints, &found);
  if (code != 0) *error = gai_strerror(code);
  return AddressList(code == 0 ? found : nullptr, &freeaddrinfo);
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
  return false;
}

std::string Remedy(int error, const std::string& flag) {
  switch (error) {
    case EADDRINUSE: return absl::StrCat("another process, perhaps another lossgauged, listens there; stop it or choose another port with ", flag);
    case EADDRNOTAVAIL: return absl::StrCat("this machine has no such address; choose one of its own with ", flag);
    case EACCES: return absl::StrCat("this user may not use that port; choose one above 1023 with ", flag);
    default: return absl::StrCat("choose another address with ", flag);
  }
}

}  // namespace

std::string ListenAddress::Text() const {
  const bool bracket = host.find(':') != std::string::npos;
  return absl::StrCat(bracket ? "[" : "", host, bracket ? "]" : "", ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  const auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("listen address ", Quoted(text), ": ", why, "; write HOST:PORT, such as 127.0.0.1:9788 or [::1]:9788"));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return refuse("no port");
  std::string host = text.substr(0, colon);
  if (!host.empty() && host.front() == '[') {
    if (host.back() != ']') return refuse("the bracket is not closed");
    host = host.substr(1, host.size() - 2);
    in6_addr ignored;
    if (inet_pton(AF_INET6, host.c_str(), &ignored) != 1) return refuse("no IPv6 address stands in the brackets");
  } else if (host.find(':') != std::string::npos) {
    return refuse("an IPv6 address needs brackets");
  }
  if (host.find('\0') != std::string::npos) return refuse("the host holds a NUL byte");
  const std::string port_text = text.substr(colon + 1);
  std::uint32_t port = 0;
  if (port_text.empty() || port_text.find_first_not_of("0123456789") != std::string::npos || !absl::SimpleAtoi(port_text, &port) || port > 65535) {
    return refuse("the port is not a number from 0 to 65535");
  }
  return ListenAddress{host, static_cast<std::uint16_t>(port)};
}

bool IsLoopback(const ListenAddress& address) {
  std::string error;
  const AddressList list = Resolve(address, &error);
  if (!list) return false;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    if (!IsLoopback(info->ai_addr)) return false;
  }
  return true;
}

absl::StatusOr<int> OpenListeningSocket(const ListenAddress& address, int backlog, const std::string& what, const std::string& flag) {
  std::string resolve_error;
  const AddressList list = Resolve(address, &resolve_error);
  if (!list) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address.Text(), " for ", what, ": the host cannot be resolved (", resolve_error, "); choose another with ", flag));
  }
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = list.get(); info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd < 0) {
      error = errno;
      continue;
    }
    // SO_REUSEADDR only skips TIME_WAIT of our own past. SO_REUSEPORT would let two observers share a port, each answering at random.
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, backlog) == 0) return fd;
    error = errno;
    close(fd);
    if (error == EADDRINUSE) break;  // the next address of the same name would hide the collision
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address.Text(), " for ", what, ": ", std::strerror(error), " (errno ", error,
                                             "); ", Remedy(error, flag)));
}

std::uint16_t BoundPort(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

}  // namespace lossgauge::api
