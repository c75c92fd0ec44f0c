// /metrics: a snapshot as a Prometheus text page.
#ifndef LOSSGAUGE_SERVER_EXPORT_METRICS_PAGE_H_
#define LOSSGAUGE_SERVER_EXPORT_METRICS_PAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "server/state/service_counters.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

struct MetricsPageOptions {
  // More ranks than this on one page: the largest runs keep their run-level series only.
  std::size_t max_ranks = 500;
  // A daemon has the same runs on its page: left off here is whatever is on it, so that no series of a run is there twice. Those of ranks stay
  // where the run's world is larger than max_ranks, because then the daemon has none.
  bool leave_runs_to_daemon = false;
  std::string revision = "unknown";        // of the source, for lossgauge_build_info
  std::string proc_self = "/proc/self";
  // What servers count; null: nothing. Outlives the page.
  const state::ServiceCounters* service = nullptr;
  // Monotonic nanoseconds, to time rendering; default: CLOCK_MONOTONIC.
  std::function<std::int64_t()> monotonic_ns;
  // The present by the clock of lossgauged, for what has a term; default: state::SystemClock.
  std::function<state::TimeNs()> now_ns;
};

// Thread-safe: any number of scrapes at once. Takes nothing but the snapshot and this process's own /proc, so that two Prometheus
// replicas and a curl between them see the same; only the page's own scrape counters depend on who asked before.
class MetricsPage {
 public:
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

  explicit MetricsPage(MetricsPageOptions options = {});

  // Never throws for what a producer wrote; no explicit timestamps; always a page that Prometheus accepts.
  std::string Render(const state::Snapshot& snapshot);

 private:
  const MetricsPageOptions options_;
  std::atomic<std::uint64_t> scrapes_{0};
  std::atomic<std::uint64_t> scrape_ns_{0};
  std::atomic<std::uint64_t> last_bytes_{0};
  std::atomic<std::uint64_t> duplicate_runs_{0};
  std::atomic<std::uint64_t> duplicate_ranks_{0};
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_METRICS_PAGE_H_
