#include "server/detect/run_history.h"

#include <algorithm>
#include <cmath>

namespace lossgauge::detect {
namespace {

constexpr std::size_t kMaxCheckpoints = 8;
constexpr std::size_t kMaxAttempts = 12;
constexpr std::size_t kMaxActions = 4;
constexpr std::size_t kMaxPathBytes = 1024;
constexpr std::size_t kMaxWordBytes = 256;

}  // namespace

void RunHistory::AddCheckpoint(std::int64_t step, const std::string& path, std::int64_t good_step) {
  const std::string cut = path.substr(0, kMaxPathBytes);
  auto at = std::lower_bound(checkpoints_.begin(), checkpoints_.end(), step, [](const state::ResumePoint& p, std::int64_t s) { return p.step < s; });
  if (at != checkpoints_.end() && at->step == step) {
    at->path = cut;  // saved again
    return;
  }
  checkpoints_.insert(at, {step, cut});
  if (checkpoints_.size() <= kMaxCheckpoints) return;
  // Drop the one whose loss matters least for its age, so that the kept ones lie closer the newer they are; never the oldest, the newest,
  // or the one that a restart would take now.
  std::size_t drop = 0;
  double least = HUGE_VAL;
  const auto newest = static_cast<double>(checkpoints_.back().step);
  for (std::size_t i = 1; i + 1 < checkpoints_.size(); ++i) {
    const bool pinned = checkpoints_[i].step <= good_step && checkpoints_[i + 1].step > good_step;
    if (pinned) continue;
    const auto before = static_cast<double>(checkpoints_[i - 1].step);
    const double gap = (static_cast<double>(checkpoints_[i + 1].step) - before) / (newest - before);
    if (gap < least) {
      least = gap;
      drop = i;
    }
  }
  checkpoints_.erase(checkpoints_.begin() + static_cast<std::ptrdiff_t>(drop));
}

void RunHistory::ForgetCheckpointsAfter(std::int64_t step) {
  std::erase_if(checkpoints_, [step](const state::ResumePoint& point) { return point.step > step; });
}

std::optional<state::ResumePoint> RunHistory::CheckpointAtOrBefore(std::int64_t step) const {
  for (auto it = checkpoints_.rbegin(); it != checkpoints_.rend(); ++it) {
    if (it->step <= step) return *it;
  }
  return std::nullopt;
}

bool RunHistory::Knows(const std::string& attempt) const {
  return std::any_of(attempts_.begin(), attempts_.end(), [&](const AttemptRecord& record) { return record.attempt == attempt; });
}

void RunHistory::BeginAttempt(const std::string& attempt, state::TimeNs start_ns, const std::optional<Failure>& failure_of_last) {
  if (!attempts_.empty()) attempts_.back().failure = failure_of_last;
  attempts_.push_back({attempt.substr(0, kMaxWordBytes), start_ns, -1, -1, std::nullopt});
  if (attempts_.size() > kMaxAttempts) attempts_.pop_front();
}

void RunHistory::OnStep(std::int64_t step) {
  if (attempts_.empty()) return;
  AttemptRecord& record = attempts_.back();
  if (record.first_step < 0) record.first_step = step;
  record.last_step = std::max(record.last_step, step);
}

const AttemptRecord* RunHistory::SameFailureBefore(const Failure& failure, std::int64_t span) const {
  for (std::size_t i = 0; i + 1 < attempts_.size(); ++i) {
    const auto& earlier = attempts_[i].failure;
    if (earlier && earlier->condition == failure.condition && earlier->step >= failure.step - span && earlier->step <= failure.step + span) {
      return &attempts_[i];
    }
  }
  return nullptr;
}

int RunHistory::AttemptsWithoutProgress() const {
  std::int64_t best = INT64_MIN;
  int stuck = 0;
  for (const AttemptRecord& record : attempts_) {
    if (record.last_step > best) {
      best = record.last_step;
      stuck = 0;
    } else {
      ++stuck;
    }
  }
  return stuck;
}

void RunHistory::AddAction(const state::LedgerEntry& entry) {
  state::LedgerEntry kept = entry;
  kept.actor.resize(std::min(kept.actor.size(), kMaxWordBytes));
  kept.comment.resize(std::min(kept.comment.size(), kMaxWordBytes));
  kept.attempt.resize(std::min(kept.attempt.size(), kMaxWordBytes));
  actions_.push_back(std::move(kept));
  if (actions_.size() > kMaxActions) actions_.pop_front();
}

void RunHistory::Save(StateWriter& out) const {
  out.Put(static_cast<std::uint8_t>(checkpoints_.size()));
  for (const state::ResumePoint& point : checkpoints_) {
    out.Put(point.step);
    out.PutText(point.path);
  }
  out.Put(static_cast<std::uint8_t>(attempts_.size()));
  for (const AttemptRecord& record : attempts_) {
    out.PutText(record.attempt);
    out.Put(record.start_ns);
    out.Put(record.first_step);
    out.Put(record.last_step);
    out.Put<std::uint8_t>(record.failure ? 1 : 0);
    if (record.failure) {
      out.Put(static_cast<std::uint8_t>(record.failure->condition));
      out.Put(record.failure->step);
    }
  }
  out.Put(static_cast<std::uint8_t>(actions_.size()));
  for (const state::LedgerEntry& entry : actions_) {
    out.Put(static_cast<std::uint8_t>(entry.action));
    out.PutText(entry.actor);
    out.PutText(entry.comment);
    out.PutText(entry.attempt);
    out.Put(entry.time_ns);
  }
}

void RunHistory::Restore(StateReader& in) {
  const int checkpoints = in.GetIn<std::uint8_t>(0, kMaxCheckpoints);
  for (int i = 0; i < checkpoints && in.ok(); ++i) {
    state::ResumePoint point;
    point.step = in.GetStep();
    point.path = in.GetText(kMaxPathBytes);
    checkpoints_.push_back(std::move(point));
  }
  if (!std::is_sorted(checkpoints_.begin(), checkpoints_.end(), [](const auto& a, const auto& b) { return a.step < b.step; })) in.Fail();
  const int attempts = in.GetIn<std::uint8_t>(0, kMaxAttempts);
  for (int i = 0; i < attempts && in.ok(); ++i) {
    AttemptRecord record;
    record.attempt = in.GetText(kMaxWordBytes);
    record.start_ns = in.Get<std::int64_t>();
    record.first_step = in.GetStep();
    record.last_step = in.GetStep();
    if (in.GetBool()) {
      Failure failure;
      failure.condition = static_cast<state::Condition>(in.GetIn<std::uint8_t>(0, static_cast<std::uint8_t>(state::Condition::kCount)));
      failure.step = in.GetStep();
      record.failure = failure;
    }
    attempts_.push_back(std::move(record));
  }
  const int actions = in.GetIn<std::uint8_t>(0, kMaxActions);
  for (int i = 0; i < actions && in.ok(); ++i) {
    state::LedgerEntry entry;
    entry.action = static_cast<state::Action>(in.GetIn<std::uint8_t>(1, 5));
    entry.actor = in.GetText(kMaxWordBytes);
    entry.comment = in.GetText(kMaxWordBytes);
    entry.attempt = in.GetText(kMaxWordBytes);
    entry.time_ns = in.Get<std::int64_t>();
    actions_.push_back(std::move(entry));
  }
}

}  // namespace lossgauge::detect
