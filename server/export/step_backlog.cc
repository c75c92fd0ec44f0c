#include "server/export/step_backlog.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace lossgauge::export_ {
namespace {

using StepPointer = std::shared_ptr<const state::StepSummary>;

// Steps after `after` that the snapshot holds; rising.
std::vector<StepPointer> FromSnapshot(const state::RunSnapshot& run, std::uint64_t after, std::size_t limit) {
  std::vector<StepPointer> steps;
  for (const auto& chunk : run.recent_steps) {
    if (chunk->empty() || chunk->back()->sequence <= after) continue;
    for (const StepPointer& step : *chunk) {
      if (step->sequence <= after) continue;
      if (steps.size() == limit) return steps;
      steps.push_back(step);
    }
  }
  return steps;
}

std::uint64_t OldestInSnapshot(const state::RunSnapshot* run) {
  if (run == nullptr) return UINT64_MAX;
  for (const auto& chunk : run->recent_steps) {
    if (!chunk->empty()) return chunk->front()->sequence;
  }
  return UINT64_MAX;
}

absl::StatusOr<std::vector<StepPointer>> StepsAfter(const std::string& name, const state::RunSnapshot* run, state::HistoryReader* history,
                                                    std::uint64_t after, std::size_t limit) {
  const std::uint64_t oldest = OldestInSnapshot(run);
  if (oldest <= after + 1 || (history == nullptr && run != nullptr)) return FromSnapshot(*run, after, limit);
  std::vector<StepPointer> steps;
  if (history == nullptr) return steps;
  state::StepQuery query;
  query.run = name;
  query.after_sequence = after;
  query.limit = static_cast<int>(limit);
  query.without_ranks = true;
  absl::StatusOr<std::vector<state::StepSummary>> rows = history->ReadSteps(query);
  if (!rows.ok()) return rows.status();
  for (state::StepSummary& row : *rows) {
    // The snapshot's own are at least as new.
    if (row.sequence >= oldest) break;
    steps.push_back(std::make_shared<const state::StepSummary>(std::move(row)));
  }
  if (steps.empty() && run != nullptr) return FromSnapshot(*run, after, limit);
  return steps;
}

}  // namespace

std::int64_t TimestampMs(const state::StepSummary& step, std::int64_t last_ms, std::int64_t max_age_ns, state::TimeNs now_ns, bool* moved) {
  const state::TimeNs arrived = std::min(step.receive_time_ns, now_ns);
  const state::TimeNs said = step.publish_time_ns;
  const bool credible = said <= arrived && said >= arrived - max_age_ns;
  const std::int64_t wanted = (credible ? said : arrived) / 1'000'000;
  const std::int64_t timestamp = std::max(wanted, last_ms + 1);
  *moved = !credible || timestamp != wanted;
  return timestamp;
}

absl::StatusOr<StepBatch> NextBatch(const std::string& name, const state::RunSnapshot* run, state::HistoryReader* history, const ShipCursor& cursor,
                                    std::uint64_t last_sequence, state::TimeNs now_ns, const BacklogLimits& limits) {
  StepBatch batch;
  batch.end = cursor.sent;
  // What was in flight when a process died is sent again as it was, and nothing new with it: a receiver that has it may refuse the whole.
  const std::uint64_t limit = cursor.in_flight > cursor.sent ? std::min(cursor.in_flight, last_sequence) : last_sequence;
  if (limit <= cursor.sent) return batch;
  absl::StatusOr<std::vector<StepPointer>> steps = StepsAfter(name, run, history, cursor.sent, limits.max_steps);
  if (!steps.ok()) return steps.status();
  std::int64_t last_ms = cursor.last_ms;
  bool limit_reached = steps->empty();
  for (StepPointer& step : *steps) {
    if (step->sequence > limit) {
      limit_reached = true;
      break;
    }
    if (step->receive_time_ns < now_ns - limits.max_age_ns) {
      batch.missing += step->sequence - batch.end - 1;
      batch.end = step->sequence;
      ++batch.too_old;
      continue;
    }
    bool moved = false;
    const std::int64_t timestamp = TimestampMs(*step, last_ms, limits.max_age_ns, now_ns, &moved);
    if (timestamp > now_ns / 1'000'000) return batch;  // its time will come
    batch.missing += step->sequence - batch.end - 1;
    batch.end = step->sequence;
    batch.moved += moved ? 1 : 0;
    last_ms = timestamp;
    batch.steps.push_back({std::move(step), timestamp});
  }
  if (limit_reached || (steps->size() < limits.max_steps && OldestInSnapshot(run) > limit)) {
    // Neither has what is left up to the limit, if anything is.
    batch.missing += limit - batch.end;
    batch.end = limit;
  }
  batch.more = batch.end < last_sequence;
  return batch;
}

absl::StatusOr<std::uint64_t> SequenceBefore(const std::string& name, const state::RunSnapshot* run, state::HistoryReader* history,
                                             std::uint64_t last_sequence, state::TimeNs since_ns) {
  std::uint64_t before = 0;  // every step up to it is older
  std::uint64_t after = last_sequence;  // every step after it is not
  while (before < after) {
    const std::uint64_t middle = before + (after - before) / 2;
    const absl::StatusOr<std::vector<StepPointer>> next = StepsAfter(name, run, history, middle, 1);
    if (!next.ok()) return next.status();
    if (!next->empty() && next->front()->receive_time_ns < since_ns) {
      before = next->front()->sequence;
    } else {
      after = middle;
    }
  }
  return before;
}

absl::StatusOr<std::uint64_t> LastSequence(const std::string& name, state::HistoryReader* history) {
  if (history == nullptr) return 0;
  state::StepQuery query;
  query.run = name;
  query.limit = 1;
  query.newest_first = true;
  query.without_ranks = true;
  const absl::StatusOr<std::vector<state::StepSummary>> rows = history->ReadSteps(query);
  if (!rows.ok()) return rows.status();
  return rows->empty() ? 0 : rows->front().sequence;
}

}  // namespace lossgauge::export_
