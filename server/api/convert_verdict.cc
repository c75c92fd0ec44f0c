#include "server/api/convert_verdict.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/api/convert_incident.h"
#include "server/api/convert_step.h"
#include "server/api/text.h"
#include "server/state/kinds.h"

namespace lossgauge::api {
namespace {

// How long an UNKNOWN of ours stands: long enough to be read, short enough that nobody builds on it.
constexpr std::int64_t kUnknownTermNs = 5'000'000'000;

std::string TimeText(state::TimeNs time_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixNanos(time_ns), absl::UTCTimeZone());
}

state::Verdict Unknown(const state::Verdict& last, std::string_view code, std::string reason, state::TimeNs since_ns, state::TimeNs now_ns) {
  state::Verdict verdict;
  verdict.reason = std::move(reason);
  verdict.reason_codes = {std::string(code)};
  verdict.policy_version = last.policy_version;
  verdict.evaluated_at_ns = now_ns;
  verdict.valid_until_ns = now_ns + kUnknownTermNs;
  verdict.attempt = last.attempt;
  verdict.last_step = last.last_step;
  if (last.last_step_age_ns) {
    verdict.last_step_age_ns = *last.last_step_age_ns + std::max<std::int64_t>(0, now_ns - last.evaluated_at_ns);
  }
  verdict.since_ns = since_ns;
  verdict.scope = last.scope;
  verdict.mode = last.mode;
  return verdict;
}

}  // namespace

state::Verdict CurrentVerdict(const state::RunSnapshot& run, state::TimeNs now_ns) {
  const state::Verdict& last = run.verdict;
  if (last.evaluated_at_ns == 0) {
    return Unknown(last, state::kReasonNoData, "not judged yet: no step of this run has been read", run.first_seen_ns, now_ns);
  }
  if (now_ns >= last.valid_until_ns) {
    return Unknown(last, state::kReasonStale,
                   absl::StrCat("stale: the last verdict, ", std::string(state::ActionName(last.action)), ", was valid until ",
                                TimeText(last.valid_until_ns), " and has not been renewed since"),
                   last.valid_until_ns, now_ns);
  }
  if (last.action == state::Action::kContinue && !last.last_step) {
    return Unknown(last, state::kReasonNoData, "no step stands behind the last verdict", last.evaluated_at_ns, now_ns);
  }
  return last;
}

void ToMessage(const std::string& run, const state::Verdict& verdict, const std::string& instance, v1::Verdict* message) {
  message->set_run(ValidUtf8(run));
  message->set_action(static_cast<v1::Action>(verdict.action));
  message->set_reason(ValidUtf8(verdict.reason));
  for (const std::string& code : verdict.reason_codes) message->add_reason_codes(ValidUtf8(code));
  for (const state::Evidence& evidence : verdict.evidence) ToMessage(evidence, message->add_evidence());
  message->set_policy_version(ValidUtf8(verdict.policy_version));
  SetTimestamp(verdict.evaluated_at_ns, message->mutable_evaluated_at());
  SetTimestamp(verdict.valid_until_ns, message->mutable_valid_until());
  message->set_attempt(ValidUtf8(verdict.attempt));
  if (verdict.last_step) message->set_last_step(*verdict.last_step);
  if (verdict.last_step_age_ns) SetDuration(*verdict.last_step_age_ns, message->mutable_last_step_age());
  if (verdict.last_good_step) message->set_last_good_step(*verdict.last_good_step);
  if (verdict.resume_point) {
    message->mutable_resume_point()->set_step(verdict.resume_point->step);
    message->mutable_resume_point()->set_path(ValidUtf8(verdict.resume_point->path));
  }
  if (verdict.skip) {
    message->mutable_skip()->set_first(verdict.skip->first);
    message->mutable_skip()->set_last(verdict.skip->last);
  }
  if (verdict.rank_at_fault) message->set_rank_at_fault(*verdict.rank_at_fault);
  message->set_escalates(ValidUtf8(verdict.escalates));
  if (verdict.since_ns) SetTimestamp(*verdict.since_ns, message->mutable_since());
  message->set_scope(ValidUtf8(verdict.scope));
  message->set_mode(ValidUtf8(verdict.mode));
  message->set_instance(ValidUtf8(instance));
}

static_assert(static_cast<int>(state::Action::kContinue) == v1::CONTINUE && static_cast<int>(state::Action::kWatch) == v1::WATCH &&
              static_cast<int>(state::Action::kRestart) == v1::RESTART && static_cast<int>(state::Action::kHalt) == v1::HALT &&
              static_cast<int>(state::Action::kUnknown) == v1::UNKNOWN);

}  // namespace lossgauge::api
