#include "server/export/metrics_page.h"

#include <ctime>
#include <utility>

#include "prometheus/text_serializer.h"
#include "server/export/snapshot_collectable.h"
#include "server/state/clock.h"

namespace lossgauge::export_ {
namespace {

std::int64_t MonotonicNs() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

MetricsPageOptions WithDefaults(MetricsPageOptions options) {
  if (!options.monotonic_ns) options.monotonic_ns = MonotonicNs;
  if (!options.now_ns) options.now_ns = [clock = state::SystemClock()]() mutable { return clock.NowNs(); };
  return options;
}

}  // namespace

MetricsPage::MetricsPage(MetricsPageOptions options) : options_(WithDefaults(std::move(options))) {}

std::string MetricsPage::Render(const state::Snapshot& snapshot) {
  const std::int64_t begin_ns = options_.monotonic_ns();
  PageContext context;
  context.now_ns = options_.now_ns();
  context.max_ranks = options_.max_ranks;
  context.leave_runs_to_daemon = options_.leave_runs_to_daemon;
  context.revision = options_.revision;
  context.proc_self = options_.proc_self;
  context.scrapes = scrapes_.load();
  context.scrape_ns = scrape_ns_.load();
  context.last_bytes = last_bytes_.load();
  context.duplicate_runs = duplicate_runs_.load();
  context.duplicate_ranks = duplicate_ranks_.load();
  context.service = options_.service;
  const SnapshotCollectable collectable(snapshot, std::move(context));
  std::string page = prometheus::TextSerializer().Serialize(collectable.Collect());
  duplicate_runs_ += collectable.duplicate_runs();
  duplicate_ranks_ += collectable.duplicate_ranks();
  last_bytes_ = page.size();
  const std::int64_t end_ns = options_.monotonic_ns();
  if (end_ns > begin_ns) scrape_ns_ += static_cast<std::uint64_t>(end_ns - begin_ns);
  ++scrapes_;
  return page;
}

}  // namespace lossgauge::export_
