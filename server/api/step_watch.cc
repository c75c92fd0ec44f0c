#include "server/api/step_watch.h"

#include "absl/strings/str_cat.h"
#include "server/api/convert_step.h"
#include "server/api/requests.h"
#include "server/api/step_feed.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

constexpr int kMaxStepsPerMessage = 256;
// A message stays well below the 4 MiB that gRPC clients take by default, whatever the number of ranks.
constexpr std::size_t kMaxMessageBytes = 1 << 20;

}  // namespace

absl::StatusOr<StepWatch> StepWatch::Create(const state::Snapshot& snapshot, const v1::WatchStepsRequest& request,
                                            std::shared_ptr<state::HistoryReader> history) {
  auto run = RequireRun(snapshot, request.run());
  if (!run.ok()) return run.status();
  StepWatch watch;
  watch.run_ = request.run();
  watch.include_ranks_ = request.include_ranks();
  watch.history_ = std::move(history);
  const std::uint64_t newest = (*run)->next_sequence - 1;
  if (!request.has_after_sequence()) {
    watch.cursor_ = newest;
  } else {
    if (request.after_sequence() > newest) {
      return absl::OutOfRangeError(absl::StrCat("after_sequence: ", request.after_sequence(), " has not been reached, the newest step of run ",
                                                Quoted(request.run()), " has sequence ", newest,
                                                "; the state that gave it was lost: begin again with 0, or leave it out for live steps only"));
    }
    watch.cursor_ = request.after_sequence();
    watch.from_oldest_ = watch.cursor_ == 0;
  }
  return watch;
}

bool StepWatch::NeedsHistory(const state::Snapshot& snapshot) const {
  const auto run = state::FindRun(snapshot, run_);
  return history_ != nullptr && run != nullptr && api::NeedsHistory(*run, cursor_);
}

absl::StatusOr<bool> StepWatch::Next(const state::Snapshot& snapshot, state::TimeNs, Message* message) {
  const auto run = state::FindRun(snapshot, run_);
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("run ", Quoted(run_), " is no longer kept"));
  if (cursor_ + 1 >= run->next_sequence) return false;

  state::StepQuery query;
  query.run = run_;
  query.after_sequence = cursor_;
  query.limit = kMaxStepsPerMessage;
  const absl::StatusOr<StepList> steps = ReadAfter(*run, history_.get(), query);
  if (!steps.ok()) return steps.status();

  std::uint64_t expected = cursor_ + 1;
  std::size_t bytes = 0;
  for (const auto& step : *steps) {
    // Only what lies before a message can be said to be skipped: a gap inside a batch ends it.
    if (step->sequence != expected && message->steps_size() > 0) break;
    if (message->steps_size() == 0 && !from_oldest_) message->set_skipped(step->sequence - expected);
    v1::Step* added = message->add_steps();
    ToMessage(*step, include_ranks_, added);
    bytes += added->ByteSizeLong();
    expected = step->sequence + 1;
    if (bytes >= kMaxMessageBytes) break;
  }
  if (message->steps_size() == 0) {  // nothing of it is kept
    if (!from_oldest_) message->set_skipped(run->next_sequence - expected);
    expected = run->next_sequence;
  }
  from_oldest_ = false;
  cursor_ = expected - 1;
  return message->steps_size() > 0 || message->skipped() > 0;
}

}  // namespace lossgauge::api
