// lossgauged put together: sources, book, store, pipeline and the servers in front of it.
#ifndef LOSSGAUGE_SERVER_MAIN_OBSERVER_H_
#define LOSSGAUGE_SERVER_MAIN_OBSERVER_H_

#include <memory>

#include "absl/status/status.h"
#include "server/main/flags.h"

namespace lossgauge::main {

class Observer {
 public:
  explicit Observer(Flags flags);
  ~Observer();

  // Draining begins before the servers listen. An address that cannot be had is tried again for some seconds, for a predecessor that is just
  // ending; then it is an error, with address and errno.
  absl::Status Start();
  // SIGHUP. On an error the old policy stays; UNAVAILABLE: until the drain thread, which stands still, goes on.
  absl::Status ReloadPolicy();
  // Thread-safe, from Start on: see DrainWatch. Not ready is also who has published nothing yet.
  absl::Status CheckReady() const;
  absl::Status CheckNotHung() const;
  // Producers were seen, all of them have ended or been gone for a minute, and what they left is read.
  bool EveryProducerEnded() const;
  // Final drain and commit, then the servers end their streams. Within 5 s.
  void Shutdown();

 private:
  struct Parts;
  absl::Status MakeRingSource();
  absl::Status MakeForwardSource();
  Flags flags_;  // with the real path of state_dir once that is made
  std::unique_ptr<Parts> parts_;
};

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_OBSERVER_H_
