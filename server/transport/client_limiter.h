// What one client may take of a server: calls in a second, and streams or connections at a time. A client is an address, because that is
// what it cannot change at will; all of one machine's loopback clients are one.
#ifndef LOSSGAUGE_SERVER_TRANSPORT_CLIENT_LIMITER_H_
#define LOSSGAUGE_SERVER_TRANSPORT_CLIENT_LIMITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lossgauge::transport {

struct ClientLimits {
  double calls_per_second = 0;    // on average, with as many at once as fit into two seconds; 0: no limit
  std::size_t max_streams = 0;    // at a time; 0: no limit
  std::size_t max_clients = 4096;  // known at a time; beyond it, those that are new share one allowance
  std::function<std::int64_t()> monotonic_ns;  // default: CLOCK_MONOTONIC
};

// "10.1.2.3" of gRPC's "ipv4:10.1.2.3:5000", "fe80::1" of "ipv6:%5Bfe80::1%5D:5000"; other text as it is.
std::string ClientOfPeer(std::string_view peer);

// Thread-safe. Slots may outlive it.
class ClientLimiter {
 public:
  explicit ClientLimiter(ClientLimits limits);

  // False: the client has used up its calls.
  bool AdmitCall(const std::string& client);
  // Held for as long as the stream is open; null: the client holds as many as it may.
  std::shared_ptr<void> AdmitStream(const std::string& client);
  std::size_t clients() const;

 private:
  struct Client {
    double calls = 0;  // that it may make now
    std::int64_t filled_ns = 0;
    std::size_t streams = 0;
  };
  struct Book {
    std::mutex mutex;
    std::unordered_map<std::string, Client> clients;
  };
  // With the lock held.
  std::unordered_map<std::string, Client>::iterator Find(const std::string& client, std::int64_t now_ns);
  void Fill(Client* client, std::int64_t now_ns) const;
  double burst() const { return limits_.calls_per_second * 2; }

  const ClientLimits limits_;
  const std::shared_ptr<Book> book_;
};

}  // namespace lossgauge::transport

#endif  // LOSSGAUGE_SERVER_TRANSPORT_CLIENT_LIMITER_H_
