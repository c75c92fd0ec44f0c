#include "server/export/snapshot_collectable.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "server/export/forward_series.h"
#include "server/export/label_text.h"
#include "server/export/process_series.h"
#include "server/export/rank_series.h"
#include "server/export/run_series.h"
#include "server/export/service_series.h"

#ifndef LOSSGAUGE_VERSION
#error "the build defines LOSSGAUGE_VERSION"
#endif

namespace lossgauge::export_ {
namespace {

constexpr std::size_t kMaxCauses = 32;  // of one self metric: its map comes from another part and is kept bounded here too

// Causes that exist at 0 before they first happen.
constexpr std::string_view kRingErrorCauses[] = {
    "bad_layout", "bad_magic",   "bad_sizes",  "directory_unreadable", "gone",          "map_failed",        "max_segments",  "no_content",
    "not_a_file", "not_ready",   "open_failed", "other_byte_order",    "other_kind",    "other_major",       "other_segment", "permission_denied",
    "refused",    "symbolic_link", "too_many_files", "too_short",      "truncated",     "unknown_kind"};
constexpr std::string_view kRefusalCauses[] = {"duplicate_rank", "layout_mismatch", "max_ranks", "max_runs"};

template <typename Declared>
void AddByCause(Metric metric, const std::map<std::string, std::uint64_t>& counts, const Declared& declared, FamilyBuilder& page) {
  std::map<std::string, std::uint64_t> all;
  for (const std::string_view cause : declared) all.emplace(cause, 0);
  for (const auto& [cause, count] : counts) {
    const std::string label = LabelText(cause);
    if (all.size() < kMaxCauses || all.count(label) != 0) {
      all[label] += count;
    } else {
      all["other"] += count;
    }
  }
  for (const auto& [cause, count] : all) page.Add(metric, {cause}, static_cast<double>(count));
}

// Runs whose ranks get series of their own: the smallest first, as long as they fit.
std::set<const state::RunSnapshot*> RunsWithRanks(const std::vector<std::shared_ptr<const state::RunSnapshot>>& runs,
                                                  std::size_t max_ranks) {
  std::vector<const state::RunSnapshot*> by_size;
  for (const auto& run : runs) by_size.push_back(run.get());
  std::stable_sort(by_size.begin(), by_size.end(), [](const auto* a, const auto* b) { return a->ranks.size() + a->ranks_left_out < b->ranks.size() + b->ranks_left_out; });
  std::set<const state::RunSnapshot*> chosen;
  std::size_t used = 0;
  for (const auto* run : by_size) {
    used += run->ranks.size() + run->ranks_left_out;
    if (used > max_ranks || run->ranks_left_out > 0) break;
    chosen.insert(run);
  }
  return chosen;
}

double Count(std::uint64_t value) { return static_cast<double>(value); }

}  // namespace

void SnapshotCollectable::AddRuns(FamilyBuilder& page) const {
  const auto with_ranks = RunsWithRanks(snapshot_.runs, context_.max_ranks);
  std::set<std::string> names;
  std::uint64_t left_off = 0;
  for (const auto& run : snapshot_.runs) {
    std::string label = LabelText(run->run);
    // Two runs under one label would fail the whole scrape: the second gets a mark, and if even that is taken it is left off.
    if (names.count(label) != 0) label = WithHash(label, run->run);
    if (!names.insert(label).second) {
      ++duplicate_runs_;
      continue;
    }
    if (context_.leave_runs_to_daemon) {
      if (run->layout.world_size <= context_.max_ranks) continue;
    } else {
      AddRunSeries(label, *run, context_.now_ns, page);
    }
    if (with_ranks.count(run.get()) == 0) {
      left_off += run->ranks.size() + run->ranks_left_out;
      continue;
    }
    std::set<std::uint32_t> ranks;
    for (const state::RankView& rank : run->ranks) {
      if (ranks.insert(rank.rank).second) {
        AddRankSeries(label, rank, run->ended, page);
      } else {
        ++duplicate_ranks_;
      }
    }
  }
  page.Add(Metric::kRanksNotExported, {}, Count(left_off));
}

void SnapshotCollectable::AddSelf(FamilyBuilder& page) const {
  const state::SelfView& self = snapshot_.self;
  AddForwardSeries(self, page);
  page.Add(Metric::kBuildInfo, {LOSSGAUGE_VERSION, LabelText(context_.revision), __VERSION__}, 1.0);
  page.Add(Metric::kSnapshotTime, {}, static_cast<double>(snapshot_.time_ns) * 1e-9);
  const auto ended = std::count_if(snapshot_.runs.begin(), snapshot_.runs.end(), [](const auto& run) { return run->ended; });
  page.Add(Metric::kRuns, {"active"}, static_cast<double>(std::ssize(snapshot_.runs) - ended));
  page.Add(Metric::kRuns, {"ended"}, static_cast<double>(ended));
  AddByCause(Metric::kRunsRefused, self.runs_refused, kRefusalCauses, page);
  page.Add(Metric::kNamesRepaired, {}, Count(self.names_repaired));
  page.Add(Metric::kRingsAttached, {}, Count(self.rings_attached));
  AddByCause(Metric::kRingErrors, self.ring_errors, kRingErrorCauses, page);
  page.Add(Metric::kDrainCycles, {}, Count(self.drain_cycles));
  page.Add(Metric::kDrainLag, {}, self.drain_lag_seconds);
  page.Add(Metric::kDrainBusy, {}, self.drain_busy_seconds);
  page.Add(Metric::kStepsJoined, {}, Count(self.steps_joined));
  page.Add(Metric::kStepsCorrected, {}, Count(self.steps_corrected));
  page.Add(Metric::kLateRecords, {}, Count(self.late_records));
  page.Add(Metric::kDuplicateRecords, {}, Count(self.duplicate_records));
  page.Add(Metric::kAbsurdSteps, {}, Count(self.absurd_steps));
  page.Add(Metric::kBaselineResets, {}, Count(self.baseline_resets));
  page.Add(Metric::kStateWriteErrors, {}, Count(self.state_write_errors));
  page.Add(Metric::kStateBytes, {}, Count(self.state_bytes));
  page.Add(Metric::kHistoryThinned, {}, Count(self.history_steps_thinned));
  page.Add(Metric::kHistoryDropped, {"age"}, Count(self.history_steps_dropped_by_age));
  page.Add(Metric::kHistoryDropped, {"size"}, Count(self.history_steps_dropped_by_size));
  page.Add(Metric::kHistoryDropped, {"damaged"}, Count(self.history_steps_damaged));
  page.Add(Metric::kHistoryDropped, {"unwritten"}, Count(self.history_steps_unwritten));
  static const state::ServiceCounters kNothing;
  AddServiceSeries(context_.service != nullptr ? *context_.service : kNothing, page);
  page.Add(Metric::kScrapes, {}, Count(context_.scrapes));
  page.Add(Metric::kScrapeSeconds, {}, static_cast<double>(context_.scrape_ns) * 1e-9);
  if (context_.scrapes > 0) page.Add(Metric::kScrapeBytes, {}, Count(context_.last_bytes));
  page.Add(Metric::kDuplicatesDropped, {"run"}, Count(context_.duplicate_runs));
  page.Add(Metric::kDuplicatesDropped, {"rank"}, Count(context_.duplicate_ranks));
  AddProcessSeries(context_.proc_self, page);
  page.Add(Metric::kProcessStart, {}, static_cast<double>(snapshot_.start_time_ns) * 1e-9);
}

std::vector<prometheus::MetricFamily> SnapshotCollectable::Collect() const {
  duplicate_runs_ = 0;
  duplicate_ranks_ = 0;
  FamilyBuilder page;
  AddRuns(page);
  AddSelf(page);
  return page.Take();
}

}  // namespace lossgauge::export_
