#include "server/state/current_verdict.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/state/kinds.h"

namespace lossgauge::state {
namespace {

// How long an UNKNOWN of ours stands: long enough to be read, short enough that nobody builds on it.
constexpr std::int64_t kUnknownTermNs = 5'000'000'000;

std::string TimeText(TimeNs time_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixNanos(time_ns), absl::UTCTimeZone());
}

Verdict Unknown(const Verdict& last, std::string_view code, std::string reason, TimeNs since_ns, TimeNs now_ns) {
  Verdict verdict;
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

Verdict CurrentVerdict(const RunSnapshot& run, TimeNs now_ns) {
  const Verdict& last = run.verdict;
  if (last.evaluated_at_ns == 0) {
    return Unknown(last, kReasonNoData, "not judged yet: no step of this run has been read", run.first_seen_ns, now_ns);
  }
  if (now_ns >= last.valid_until_ns) {
    return Unknown(last, kReasonStale,
                   absl::StrCat("stale: the last verdict, ", std::string(ActionName(last.action)), ", was valid until ",
                                TimeText(last.valid_until_ns), " and has not been renewed since"),
                   last.valid_until_ns, now_ns);
  }
  if (last.action == Action::kContinue && !last.last_step) {
    return Unknown(last, kReasonNoData, "no step stands behind the last verdict", last.evaluated_at_ns, now_ns);
  }
  return last;
}

}  // namespace lossgauge::state
