#include "server/ingest/forwarding.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossgauge::ingest {
namespace {

constexpr std::size_t kSenderBytes = 16;

std::string RandomSender() {
  std::random_device random;
  std::string sender;
  while (sender.size() < kSenderBytes) sender.push_back(static_cast<char>(random()));
  return sender;
}

// Stays with the directory, so that a daemon knows this sidecar again after it was started anew.
absl::StatusOr<std::string> KeptSender(const std::string& directory) {
  const std::string path = directory + "/sender";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  std::string sender(kSenderBytes, '\0');
  bool is_good = pread(fd, sender.data(), kSenderBytes, 0) == static_cast<ssize_t>(kSenderBytes);
  if (!is_good) {
    sender = RandomSender();
    is_good = pwrite(fd, sender.data(), kSenderBytes, 0) == static_cast<ssize_t>(kSenderBytes);
  }
  const int error = errno;
  close(fd);
  if (!is_good) return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
  return sender;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Forwarding>> Forwarding::Open(const ForwardingOptions& options, state::Clock* clock) {
  std::unique_ptr<Forwarding> forwarding(new Forwarding());
  SpoolOptions spool_options;
  spool_options.directory = options.directory;
  spool_options.max_bytes = options.spool_bytes;
  spool_options.readers = options.addresses.size();
  auto spool = Spool::Open(spool_options);
  if (!spool.ok()) return spool.status();
  forwarding->spool_ = *std::move(spool);
  absl::StatusOr<std::string> sender = RandomSender();
  if (!options.directory.empty()) sender = KeptSender(options.directory);
  if (!sender.ok()) return sender.status();
  Forwarding* const self = forwarding.get();
  forwarding->forwarder_ = std::make_unique<Forwarder>(ForwarderOptions{}, self->spool_.get(), [self] {
    for (const auto& client : self->clients_) client->Wake();
  });
  for (std::size_t i = 0; i < options.addresses.size(); ++i) {
    ForwardClientOptions client = options.client;
    client.address = options.addresses[i];
    client.reader = i;
    client.sender = *sender;
    client.node = options.node;
    forwarding->addresses_.push_back(options.addresses[i]);
    forwarding->clients_.push_back(std::make_unique<ForwardClient>(std::move(client), self->spool_.get(), self->forwarder_.get(), clock));
  }
  return forwarding;
}

Forwarding::~Forwarding() { Stop(0); }

void Forwarding::Start() {
  for (const auto& client : clients_) client->Start();
}

void Forwarding::Stop(std::int64_t limit_ns) {
  const auto share = limit_ns / static_cast<std::int64_t>(std::max<std::size_t>(clients_.size(), 1));
  for (const auto& client : clients_) client->Stop(share);
}

state::ForwardView Forwarding::View() const {
  state::ForwardView view;
  view.spool_bytes = spool_->bytes();
  view.spool_write_errors = spool_->write_errors();
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    const ForwardClientStats stats = clients_[i]->stats();
    view.targets.push_back({addresses_[i], stats.connected, stats.records_sent, stats.records_acknowledged, spool_->dropped(i), stats.failures});
  }
  return view;
}

}  // namespace lossgauge::ingest
