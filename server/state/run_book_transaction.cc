// What the store is to write, and how much of it may wait for a store that cannot.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "server/state/run_book.h"

namespace lossgauge::state {
namespace {

constexpr std::size_t kManyIncidents = 1024;
constexpr std::size_t kMostVerdicts = 4096;

// How many of the oldest had to go.
template <class Rows>
std::size_t KeepNewest(Rows* rows, std::size_t most) {
  if (rows->size() <= most) return 0;
  const std::size_t excess = rows->size() - most;
  rows->erase(rows->begin(), rows->begin() + static_cast<std::ptrdiff_t>(excess));
  return excess;
}

// An incident's last row says all that those before it said.
void KeepLastOfEach(std::vector<Incident>* incidents) {
  std::unordered_map<std::string, std::size_t> last;
  for (std::size_t i = 0; i < incidents->size(); ++i) last[(*incidents)[i].id] = i;
  std::vector<Incident> kept;
  for (std::size_t i = 0; i < incidents->size(); ++i) {
    if (last[(*incidents)[i].id] == i) kept.push_back(std::move((*incidents)[i]));
  }
  *incidents = std::move(kept);
}

}  // namespace

void RunBook::BoundQueue() {
  history_steps_dropped_ += KeepNewest(&queued_.steps, options_.max_queued_steps);
  if (queued_.incidents.size() > kManyIncidents) KeepLastOfEach(&queued_.incidents);
  KeepNewest(&queued_.incidents, options_.max_queued_incidents);
  // What falls out of cursors and runs is read again from files that linger, or forgotten by its age.
  KeepNewest(&queued_.cursors, options_.max_queued_cursors);
  KeepNewest(&queued_.forget_cursors, options_.max_queued_cursors);
  KeepNewest(&queued_.runs, options_.max_queued_runs);
  KeepNewest(&queued_.events, options_.max_queued_events);
  KeepNewest(&queued_.policies, options_.max_queued_runs);
  KeepNewest(&queued_.verdicts, kMostVerdicts);
  std::size_t journal_bytes = 0;
  for (const JournalRow& row : queued_.journal) journal_bytes += row.data.size();
  if (journal_bytes > options_.max_queued_journal_bytes) {
    queued_.journal = {};
    for (auto& [name, entry] : runs_) entry.run->RestartJournal();
  }
}

const Transaction& RunBook::BuildTransaction(TimeNs now_ns) {
  BoundQueue();
  for (auto& [name, entry] : runs_) {
    entry.run->AppendJournal(now_ns, entry.run->dirty(), &queued_);
    if (!entry.run->dirty()) continue;
    // Rows of an attempt to commit that failed are replaced, not added to.
    std::erase_if(queued_.runs, [&name = name](const RunRow& row) { return row.run == name; });
    std::erase_if(queued_.cursors, [&name = name](const CursorRow& row) { return row.run == name && !row.ended; });
    entry.run->AppendRows(now_ns, &queued_);
    stored_runs_.insert(name);
  }
  return queued_;
}

void RunBook::OnCommitted() {
  queued_ = {};
  for (auto& [name, entry] : runs_) entry.run->MarkCommitted();
}

bool RunBook::HasUncommitted() const {
  return HasSettled() || std::any_of(runs_.begin(), runs_.end(), [](const auto& entry) { return entry.second.run->dirty(); });
}

bool RunBook::HasSettled() const {
  const auto has_settled = [](const auto& entry) { return entry.second.run->HasSettled() || entry.second.run->HasJournal(); };
  return !queued_.empty() || std::any_of(runs_.begin(), runs_.end(), has_settled);
}

}  // namespace lossgauge::state
