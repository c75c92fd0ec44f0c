#include "server/transport/client_limiter.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

namespace lossgauge::transport {
namespace {

constexpr char kOthers[] = "others";

std::int64_t MonotonicNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

std::string ClientOfPeer(std::string_view peer) {
  const bool v6 = peer.starts_with("ipv6:");
  if (!v6 && !peer.starts_with("ipv4:")) return std::string(peer);
  peer.remove_prefix(5);
  peer = peer.substr(0, peer.rfind(':'));
  if (v6 && peer.starts_with("%5B")) peer.remove_prefix(3);
  if (v6 && peer.ends_with("%5D")) peer.remove_suffix(3);
  if (v6 && peer.starts_with("[")) peer.remove_prefix(1);
  if (v6 && peer.ends_with("]")) peer.remove_suffix(1);
  return std::string(peer);
}

ClientLimiter::ClientLimiter(ClientLimits limits)
    : limits_([&] {
        if (!limits.monotonic_ns) limits.monotonic_ns = MonotonicNs;
        return std::move(limits);
      }()),
      book_(std::make_shared<Book>()) {}

void ClientLimiter::Fill(Client* client, std::int64_t now_ns) const {
  const double seconds = static_cast<double>(std::max<std::int64_t>(now_ns - client->filled_ns, 0)) * 1e-9;
  client->calls = std::min(burst(), client->calls + seconds * limits_.calls_per_second);
  client->filled_ns = now_ns;
}

std::unordered_map<std::string, ClientLimiter::Client>::iterator ClientLimiter::Find(const std::string& client, std::int64_t now_ns) {
  auto& clients = book_->clients;
  if (const auto found = clients.find(client); found != clients.end()) return found;
  if (clients.size() >= limits_.max_clients) {
    // Those that have been quiet for long enough to have all their calls again are as if they had never come.
    for (auto entry = clients.begin(); entry != clients.end();) {
      Fill(&entry->second, now_ns);
      entry = entry->second.streams == 0 && entry->second.calls >= burst() ? clients.erase(entry) : std::next(entry);
    }
  }
  const bool full = clients.size() >= limits_.max_clients;
  return clients.try_emplace(full ? kOthers : client, Client{burst(), now_ns, 0}).first;
}

bool ClientLimiter::AdmitCall(const std::string& client) {
  if (limits_.calls_per_second <= 0) return true;
  const std::int64_t now_ns = limits_.monotonic_ns();
  const std::lock_guard lock(book_->mutex);
  Client& known = Find(client, now_ns)->second;
  Fill(&known, now_ns);
  if (known.calls < 1) return false;
  known.calls -= 1;
  return true;
}

std::shared_ptr<void> ClientLimiter::AdmitStream(const std::string& client) {
  if (limits_.max_streams == 0) return std::shared_ptr<void>(book_, book_.get());
  const std::lock_guard lock(book_->mutex);
  const auto found = Find(client, limits_.monotonic_ns());
  if (found->second.streams >= limits_.max_streams) return nullptr;
  ++found->second.streams;
  return std::shared_ptr<void>(book_.get(), [book = book_, name = found->first](void*) {
    const std::lock_guard release(book->mutex);
    if (const auto entry = book->clients.find(name); entry != book->clients.end()) --entry->second.streams;
  });
}

std::size_t ClientLimiter::clients() const {
  const std::lock_guard lock(book_->mutex);
  return book_->clients.size();
}

}  // namespace lossgauge::transport
