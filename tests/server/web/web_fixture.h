// An HTTP server on a free port over hand-made state, and a bare socket as its client: what is sent is exactly what the test says.
#ifndef LOSSGAUGE_TESTS_SERVER_WEB_WEB_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_WEB_WEB_FIXTURE_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/web/web_server.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::testing {

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::map<std::string, std::string> headers;  // last of each name
  std::string body;                            // chunks put together
};

// One TCP connection. Reads end after 20 s, so that a test fails rather than hangs.
class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawConnection() { close(fd_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  // False if the server has closed.
  bool Send(const std::string& bytes) { return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()); }

  // Up to and with `end`; what was read if the connection ends before.
  std::string ReadUntil(const std::string& end) {
    std::size_t found;
    while ((found = buffer_.find(end)) == std::string::npos) {
      if (!Fill()) return std::exchange(buffer_, "");
    }
    std::string text = buffer_.substr(0, found + end.size());
    buffer_.erase(0, found + end.size());
    return text;
  }
  std::string ReadBytes(std::size_t count) {
    while (buffer_.size() < count && Fill()) {
    }
    std::string text = buffer_.substr(0, count);
    buffer_.erase(0, text.size());
    return text;
  }
  std::string ReadAll() {
    while (Fill()) {
    }
    return std::exchange(buffer_, "");
  }

  HttpAnswer ReadHead() {
    HttpAnswer answer;
    const std::string head = ReadUntil("\r\n\r\n");
    if (head.rfind("HTTP/1.1 ", 0) != 0) return answer;
    answer.status = std::stoi(head.substr(9));
    std::size_t at = head.find("\r\n") + 2;
    while (at + 2 < head.size()) {
      const std::size_t end = head.find("\r\n", at);
      const std::string line = head.substr(at, end - at);
      const std::size_t colon = line.find(": ");
      if (colon != std::string::npos) answer.headers[line.substr(0, colon)] = line.substr(colon + 2);
      at = end + 2;
    }
    return answer;
  }
  HttpAnswer ReadAnswer(bool body = true) {
    HttpAnswer answer = ReadHead();
    if (answer.headers.count("Content-Length") != 0 && body) answer.body = ReadBytes(std::stoul(answer.headers["Content-Length"]));
    return answer;
  }

 private:
  bool Fill() {
    char bytes[16384];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  const int fd_;
  bool connected_ = false;
  std::string buffer_;
};

class WebFixture : public ::testing::Test {
 protected:
  static web::WebOptions Options() {
    web::WebOptions options;
    options.listen = "127.0.0.1:0";
    options.render_metrics = [] { return std::string("# HELP a b\n# TYPE a gauge\na 1\n"); };
    return options;
  }
  void StartServer(web::WebOptions options = Options()) {
    server_ = std::make_unique<web::WebServer>(std::move(options), api_);
    const absl::Status status = server_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  void Publish(std::vector<std::shared_ptr<const state::RunSnapshot>> runs) { board_.Publish(MakeSnapshot(++version_, std::move(runs))); }

  std::string HostLine() const { return "Host: " + server_->address() + "\r\n"; }
  HttpAnswer Get(const std::string& target, const std::string& headers = "") {
    RawConnection connection(server_->port());
    connection.Send("GET " + target + " HTTP/1.1\r\n" + HostLine() + headers + "\r\n");
    return connection.ReadAnswer();
  }
  HttpAnswer Post(const std::string& path, const std::string& body, const std::string& type = "application/json") {
    RawConnection connection(server_->port());
    connection.Send("POST " + path + " HTTP/1.1\r\n" + HostLine() + "Content-Type: " + type +
                    "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return connection.ReadAnswer();
  }

  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  FakeClock clock_;
  api::Api api_{board_, mailbox_, history_, clock_};
  std::unique_ptr<web::WebServer> server_;
  std::uint64_t version_ = 0;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_WEB_WEB_FIXTURE_H_
