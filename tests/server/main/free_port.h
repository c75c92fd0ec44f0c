// A port of the loopback that is free now, for a lossgauged that is to come back under its old address.
#ifndef LOSSGAUGE_TESTS_SERVER_MAIN_FREE_PORT_H_
#define LOSSGAUGE_TESTS_SERVER_MAIN_FREE_PORT_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lossgauge::testing {

inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_MAIN_FREE_PORT_H_
