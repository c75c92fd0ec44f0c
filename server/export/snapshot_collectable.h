// A snapshot as prometheus-cpp sees it: no shadow counters, nothing to keep in step.
#ifndef LOSSGAUGE_SERVER_EXPORT_SNAPSHOT_COLLECTABLE_H_
#define LOSSGAUGE_SERVER_EXPORT_SNAPSHOT_COLLECTABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "server/export/family_builder.h"
#include "server/state/service_counters.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

// What a page says of the pages before it, and of lossgauged's build.
struct PageContext {
  state::TimeNs now_ns = 0;  // of this page
  std::size_t max_ranks = 0;
  bool leave_runs_to_daemon = false;
  std::string revision;
  std::string proc_self;
  std::uint64_t scrapes = 0;
  std::uint64_t scrape_ns = 0;
  std::uint64_t last_bytes = 0;
  std::uint64_t duplicate_runs = 0;
  std::uint64_t duplicate_ranks = 0;
  const state::ServiceCounters* service = nullptr;  // null: nothing was counted
};

class SnapshotCollectable final : public prometheus::Collectable {
 public:
  // `snapshot` must outlive this object.
  SnapshotCollectable(const state::Snapshot& snapshot, PageContext context) : snapshot_(snapshot), context_(std::move(context)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

  // Of the last Collect.
  std::uint64_t duplicate_runs() const { return duplicate_runs_; }
  std::uint64_t duplicate_ranks() const { return duplicate_ranks_; }

 private:
  void AddRuns(FamilyBuilder& page) const;
  void AddSelf(FamilyBuilder& page) const;

  const state::Snapshot& snapshot_;
  const PageContext context_;
  mutable std::uint64_t duplicate_runs_ = 0;
  mutable std::uint64_t duplicate_ranks_ = 0;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_SNAPSHOT_COLLECTABLE_H_
