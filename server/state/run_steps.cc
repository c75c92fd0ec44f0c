// Steps of a run as they leave their attempt: the judge, the windows, memory and the history get them, and an attempt that repeats them is compared.
#include <algorithm>
#include <memory>
#include <utility>

#include "server/state/rank_spread.h"
#include "server/state/run.h"

namespace lossgauge::state {
namespace {

WindowMaxima MaximaOf(const StepSummary& step) {
  return {step.loss_nats, step.max_abs_logit, step.grad_norm, step.log_z_max_nats, step.step_seconds};
}

}  // namespace

// Lives in comparer_, and so no longer than its run.
class Run::Kept final : public KeptSteps {
 public:
  explicit Kept(const Run* run) : run_(*run) {}

  std::vector<std::shared_ptr<const StepSummary>> Read(std::int64_t first_step, std::int64_t last_step) override {
    std::vector<std::shared_ptr<const StepSummary>> steps;
    std::uint64_t oldest_in_memory = run_.next_sequence_;
    for (const auto& chunk : run_.recent_.Chunks()) {
      for (const auto& step : *chunk) {
        oldest_in_memory = std::min(oldest_in_memory, step->sequence);
        if (step->step >= first_step && step->step <= last_step) steps.push_back(step);
      }
    }
    if (run_.history_ == nullptr || oldest_in_memory <= 1) return steps;
    StepQuery query;
    query.run = run_.name_;
    query.first_step = first_step;
    query.last_step = last_step;
    query.without_ranks = true;
    query.newest_first = true;
    query.limit = kMostRead;
    const auto read = run_.history_->ReadSteps(query);
    if (!read.ok()) return steps;
    std::vector<std::shared_ptr<const StepSummary>> all;
    for (auto step = read->rbegin(); step != read->rend(); ++step) {
      if (step->sequence < oldest_in_memory) all.push_back(std::make_shared<const StepSummary>(*step));
    }
    all.insert(all.end(), steps.begin(), steps.end());
    return all;
  }

 private:
  // The window, over a few attempts that went through it: about 10 us each on the drain thread, once in kStepsAhead steps.
  static constexpr int kMostRead = 8192;
  const Run& run_;
};

void Run::CompareWithEarlier(Attempt* attempt, const StepSummary& step) {
  if (attempts_.size() < 2 || attempt != Newest()) return;
  if (comparer_.attempt() != attempt->name()) {
    std::vector<AttemptSpan> passes;
    for (const auto& other : attempts_) {
      const AttemptView view = other->View();
      if (other.get() != attempt && view.steps > 0) passes.push_back({view.attempt, view.first_step, view.last_step});
    }
    comparer_.Begin(attempt->name(), std::make_shared<Kept>(this), attempt->comparison(), std::move(passes));
  }
  if (comparer_.OnStep(step)) attempt->set_comparison(*comparer_.result());
}

void Run::JoinSteps(Attempt* attempt, TimeNs now_ns, Transaction* out, BookCounters* counters) {
  while (std::optional<JoinedStep> joined = attempt->TakeStep(options_.join, now_ns)) {
    joined->summary.sequence = next_sequence_++;
    ++counters->steps_joined;
    windows_.Add(joined->summary.receive_time_ns, MaximaOf(joined->summary));
    judge_->OnStep(*joined);
    CompareWithEarlier(attempt, joined->summary);
    BoundRankSteps(options_.max_rank_series, &joined->summary);
    if (!joined->summary.complete) attempt->KeepOpen(*joined, options_.join);
    auto summary = std::make_shared<const StepSummary>(std::move(joined->summary));
    recent_.Push(summary);
    if (attempt == Newest()) last_step_ = summary;
    out->steps.emplace_back(name_, std::move(summary));
    dirty_ = judge_dirty_ = presence_dirty_ = true;
  }
  for (std::shared_ptr<const StepSummary>& corrected : attempt->TakeCorrected(options_.max_rank_series)) {
    ++counters->steps_corrected;
    recent_.Replace(corrected);
    if (last_step_ != nullptr && last_step_->sequence == corrected->sequence) last_step_ = corrected;
    out->steps.emplace_back(name_, std::move(corrected));
    dirty_ = true;
  }
}

}  // namespace lossgauge::state
