#include "server/web/connection_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/api/listen_address.h"
#include "tests/server/web/web_fixture.h"

namespace lossgauge::web {
namespace {

using testing::RawConnection;

TEST(ConnectionPool, WholeRequestsGoBeforeHalfOnesAndSilence) {
  std::promise<void> go_on;
  std::shared_future<void> may_go_on = go_on.get_future().share();
  std::promise<void> first_is_served;
  std::vector<std::string> served;  // by the only thread
  std::promise<void> all_are_served;
  const auto serve = [&](int socket) {
    if (served.empty()) {
      first_is_served.set_value();
      may_go_on.wait();
    }
    char bytes[100];
    const ssize_t count = recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
    served.emplace_back(bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    close(socket);
    if (served.size() == 5) all_are_served.set_value();
  };
  const auto address = api::ParseListenAddress("127.0.0.1:0");
  ASSERT_TRUE(address.ok());
  const auto socket = api::OpenListeningSocket(*address, 16, "test", "--test");
  ASSERT_TRUE(socket.ok()) << socket.status();
  const int port = api::BoundPort(*socket);
  ConnectionPool pool(1, 16, serve);
  pool.Start(*socket);
  RawConnection first(port);
  first_is_served.get_future().wait();
  RawConnection silent(port);
  RawConnection half(port);
  half.Send("GET /half HTTP/1.1\r\nHo");
  RawConnection whole(port);
  whole.Send("GET /whole HTTP/1.1\r\n\r\n");
  RawConnection later(port);
  later.Send("GET /later HTTP/1.1\r\n\r\n");
  while (pool.waiting() < 4) std::this_thread::yield();
  go_on.set_value();
  all_are_served.get_future().wait();
  EXPECT_THAT(served, ::testing::ElementsAre("", "GET /whole HTTP/1.1\r\n\r\n", "GET /later HTTP/1.1\r\n\r\n", "", "GET /half HTTP/1.1\r\nHo"));
}

}  // namespace
}  // namespace lossgauge::web
