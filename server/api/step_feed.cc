#include "server/api/step_feed.h"

#include <algorithm>
#include <utility>

namespace lossgauge::api {
namespace {

bool Matches(const state::StepSummary& step, const state::StepQuery& query) {
  return (query.attempt.empty() || step.attempt == query.attempt) && (!query.first_step || step.step >= *query.first_step) &&
         (!query.last_step || step.step <= *query.last_step);
}

// Sequence of the oldest step in the snapshot; of the next one to come if there is none.
std::uint64_t OldestRecent(const state::RunSnapshot& run) {
  for (const auto& chunk : run.recent_steps) {
    if (chunk && !chunk->empty()) return chunk->front()->sequence;
  }
  return run.next_sequence;
}

void AppendRecent(const state::RunSnapshot& run, const state::StepQuery& query, std::uint64_t after, StepList* steps) {
  const auto limit = static_cast<std::size_t>(query.limit);
  for (const auto& chunk : run.recent_steps) {
    if (!chunk || chunk->empty() || chunk->back()->sequence <= after) continue;
    auto step = std::upper_bound(chunk->begin(), chunk->end(), after,
                                 [](std::uint64_t sequence, const auto& candidate) { return sequence < candidate->sequence; });
    for (; step != chunk->end(); ++step) {
      if (steps->size() >= limit) return;
      if (Matches(**step, query)) steps->push_back(*step);
    }
  }
}

}  // namespace

bool NeedsHistory(const state::RunSnapshot& run, std::uint64_t after_sequence) { return after_sequence + 1 < OldestRecent(run); }

absl::StatusOr<StepList> ReadAfter(const state::RunSnapshot& run, state::HistoryReader* history, const state::StepQuery& query) {
  StepList steps;
  if (query.limit <= 0) return steps;
  std::uint64_t after = query.after_sequence;
  if (history != nullptr && NeedsHistory(run, after)) {
    state::StepQuery old = query;
    old.newest_first = false;
    absl::StatusOr<std::vector<state::StepSummary>> read = history->ReadSteps(old);
    if (!read.ok()) return read.status();
    // History may be ahead of this snapshot. What the snapshot holds is taken from there, what it does not know yet comes with the next one.
    const std::uint64_t oldest_recent = OldestRecent(run);
    bool reached_recent = read->size() < static_cast<std::size_t>(query.limit);
    for (state::StepSummary& step : *read) {
      // A row of thinned steps may begin before what the snapshot holds and end in it: then the snapshot goes on behind the row.
      if ((step.thinned ? step.thinned->first_sequence : step.sequence) >= oldest_recent) {
        reached_recent = true;
        break;
      }
      after = step.sequence;
      steps.push_back(std::make_shared<const state::StepSummary>(std::move(step)));
    }
    if (!reached_recent) return steps;
  }
  AppendRecent(run, query, after, &steps);
  return steps;
}

absl::StatusOr<StepList> ReadTail(const state::RunSnapshot& run, state::HistoryReader* history, const state::StepQuery& query) {
  const auto limit = static_cast<std::size_t>(std::max(query.limit, 0));
  StepList newest_first;
  for (auto chunk = run.recent_steps.rbegin(); chunk != run.recent_steps.rend() && newest_first.size() < limit; ++chunk) {
    if (!*chunk) continue;
    for (auto step = (*chunk)->rbegin(); step != (*chunk)->rend() && newest_first.size() < limit; ++step) {
      if (Matches(**step, query)) newest_first.push_back(*step);
    }
  }
  const std::uint64_t oldest_recent = OldestRecent(run);
  if (history != nullptr && newest_first.size() < limit && oldest_recent > 1) {
    state::StepQuery old = query;
    old.after_sequence = 0;
    old.newest_first = true;
    absl::StatusOr<std::vector<state::StepSummary>> read = history->ReadSteps(old);
    if (!read.ok()) return read.status();
    for (state::StepSummary& step : *read) {
      if ((step.thinned ? step.thinned->first_sequence : step.sequence) >= oldest_recent) continue;
      while (!newest_first.empty() && newest_first.back()->sequence <= step.sequence) newest_first.pop_back();
      if (newest_first.size() >= limit) break;
      newest_first.push_back(std::make_shared<const state::StepSummary>(std::move(step)));
    }
  }
  std::reverse(newest_first.begin(), newest_first.end());
  return newest_first;
}

}  // namespace lossgauge::api
