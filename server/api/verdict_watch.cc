#include "server/api/verdict_watch.h"

#include "absl/strings/str_cat.h"
#include "server/api/convert_verdict.h"
#include "server/api/requests.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

// A verdict is valid for about 30 s: a client that has heard nothing for two of these knows, long before its verdict runs out, that the
// stream is dead rather than quiet.
constexpr std::int64_t kRepeatNs = 10'000'000'000;

}  // namespace

absl::StatusOr<VerdictWatch> VerdictWatch::Create(const state::Snapshot& snapshot, const v1::WatchVerdictRequest& request) {
  const auto run = RequireRun(snapshot, request.run());
  if (!run.ok()) return run.status();
  VerdictWatch watch;
  watch.run_ = request.run();
  return watch;
}

absl::StatusOr<bool> VerdictWatch::Next(const state::Snapshot& snapshot, state::TimeNs now_ns, Message* message) {
  const auto run = state::FindRun(snapshot, run_);
  if (run == nullptr) return absl::NotFoundError(absl::StrCat("run ", Quoted(run_), " is no longer kept"));
  state::Verdict verdict = CurrentVerdict(*run, now_ns);
  if (sent_) {
    // Half of a term is left for the way to the client and for one lost message.
    const std::int64_t half_term = (sent_->valid_until_ns - sent_->evaluated_at_ns) / 2;
    const bool running_out = verdict.valid_until_ns > sent_->valid_until_ns && now_ns >= sent_->valid_until_ns - half_term;
    if (!state::DiffersInSubstance(*sent_, verdict) && !running_out && now_ns - sent_ns_ < kRepeatNs) return false;
  }
  ToMessage(run_, verdict, snapshot.instance, message);
  sent_ = std::move(verdict);
  sent_ns_ = now_ns;
  return true;
}

}  // namespace lossgauge::api
