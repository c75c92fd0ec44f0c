#include "server/detect/slowdown.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kSlowdown};
constexpr std::int32_t kVotesToName = 5;
constexpr std::int32_t kMaxVotes = 20;

// The rank whose record came last, if it stands out: by more than a tenth of the step after the median rank.
std::optional<std::uint32_t> LastRank(const state::JoinedStep& joined, double seconds) {
  std::vector<std::int64_t> times;
  std::optional<std::uint32_t> last;
  std::int64_t latest = 0;
  for (const state::RankSample& sample : joined.samples) {
    const std::int64_t at = sample.record.boot_ns;
    if (at <= 0) return std::nullopt;
    times.push_back(at);
    if (at > latest) {
      latest = at;
      last = sample.producer->layout.rank;
    }
  }
  if (times.size() < 2) return std::nullopt;
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2), times.end());
  const double behind = static_cast<double>(latest - times[(times.size() - 1) / 2]) * 1e-9;
  if (behind < 0.1 * seconds) return std::nullopt;
  return last;
}

}  // namespace

void SlowdownDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const auto& measured = signals.joined->summary.step_seconds;
  if (!measured || !std::isfinite(*measured) || *measured < 0) return;
  const double seconds = *measured;
  const double usual = seconds_.Median();
  const bool known = seconds_.size() >= 32;
  const bool slow = known && seconds > policy.slowdown_factor * usual && seconds - usual > policy.slowdown_floor_seconds;
  if (!slow) {
    slow_ = 0;
    seconds_.Add(seconds);
    if (open_ && ++quick_ >= policy.slowdown_steps) {
      book.Resolve(kSlot, signals.moment, signals.moment.step - onset_step_ + 1);
      open_ = false;
    }
    return;
  }
  quick_ = 0;
  if (++slow_ == 1 && !open_) {
    onset_step_ = signals.moment.step;
    rank_votes_ = 0;
  }
  if (const std::optional<std::uint32_t> last = LastRank(*signals.joined, seconds); last && rank_votes_ > 0 && *last == rank_) {
    rank_votes_ = std::min(rank_votes_ + 1, kMaxVotes);
  } else if (rank_votes_ > 0) {
    --rank_votes_;
  } else if (last) {
    rank_ = *last;
    rank_votes_ = 1;
  }
  if (!open_ && slow_ < policy.slowdown_steps) return;
  open_ = true;
  Finding finding;
  finding.condition = state::Condition::kSlowdown;
  finding.onset_step = onset_step_;
  finding.peak_step = signals.moment.step;
  if (rank_votes_ >= kVotesToName) finding.rank = rank_;
  finding.summary = absl::StrFormat("Steps take %.3g s since step %d, %.1f times the usual %.3g s", seconds, onset_step_, seconds / usual, usual);
  if (finding.rank) absl::StrAppend(&finding.summary, "; rank ", *finding.rank, " comes last");
  finding.evidence = {{"step_seconds", seconds, "s", ""}, {"usual_step_seconds", usual, "s", ""}, {"slow_steps", static_cast<double>(slow_), "steps", ""}};
  book.Report(kSlot, std::move(finding), signals.moment);
}

void SlowdownDetector::Save(StateWriter& out) const {
  seconds_.Save(out);
  out.Put(slow_);
  out.Put(quick_);
  out.Put(onset_step_);
  out.Put<std::uint8_t>(open_);
  out.Put(rank_);
  out.Put(rank_votes_);
}

void SlowdownDetector::Restore(StateReader& in) {
  seconds_.Restore(in);
  slow_ = in.GetIn<std::int32_t>(0, 1 << 30);
  quick_ = in.GetIn<std::int32_t>(0, 1 << 30);
  onset_step_ = in.GetStep();
  open_ = in.GetBool();
  rank_ = in.Get<std::uint32_t>();
  rank_votes_ = in.GetIn<std::int32_t>(0, kMaxVotes);
}

}  // namespace lossgauge::detect
