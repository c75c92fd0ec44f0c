#include "server/ctl/exit_codes.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

constexpr std::array<const char*, static_cast<std::size_t>(Outcome::kCount)> kNames{"continue", "watch", "restart", "halt",
                                                                                    "unknown",  "ended", "timeout", "unreachable"};
constexpr int kFirstFreeCode = 3;
constexpr int kLastCode = 255;

bool RanOut(const v1::Verdict& verdict) {
  return verdict.has_valid_until() && verdict.has_evaluated_at() && ToTime(verdict.valid_until()) <= ToTime(verdict.evaluated_at());
}

}  // namespace

const char* OutcomeName(Outcome outcome) { return kNames[static_cast<std::size_t>(outcome)]; }

Outcome FindOutcome(std::string_view name) {
  return static_cast<Outcome>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
}

Outcome OutcomeOf(const v1::Verdict& verdict_untrusted) {
  if (RanOut(verdict_untrusted)) return Outcome::kUnknown;
  const bool calm = verdict_untrusted.mode() == "shadow";
  switch (verdict_untrusted.action()) {
    case v1::CONTINUE: return Outcome::kContinue;
    case v1::WATCH: return Outcome::kWatch;
    case v1::RESTART: return calm ? Outcome::kWatch : Outcome::kRestart;
    case v1::HALT: return calm ? Outcome::kWatch : Outcome::kHalt;
    default: break;
  }
  const auto& codes = verdict_untrusted.reason_codes();
  return std::find(codes.begin(), codes.end(), "ended") != codes.end() ? Outcome::kEnded : Outcome::kUnknown;
}

absl::StatusOr<ExitCodes> ExitCodes::Parse(std::string_view text) {
  ExitCodes codes;
  if (text.empty()) return codes;
  std::set<Outcome> given;
  for (const absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::string word(part);
    const std::size_t equals = word.find('=');
    const Outcome outcome = FindOutcome(word.substr(0, equals));
    if (equals == std::string::npos || outcome == Outcome::kCount) {
      std::string names;
      for (const char* name : kNames) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
      return absl::InvalidArgumentError(absl::StrCat("--exit-codes takes NAME=CODE,... with the names ", names, ", not \"", word, "\""));
    }
    if (!given.insert(outcome).second) return absl::InvalidArgumentError(absl::StrCat("--exit-codes has ", OutcomeName(outcome), " twice"));
    int code = -1;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, code);
    if (error != std::errc() || stop != end || code > kLastCode || (code != 0 && code < kFirstFreeCode)) {
      return absl::InvalidArgumentError(absl::StrCat("--exit-codes: \"", word, "\": a code is 0 or from ", kFirstFreeCode, " to ", kLastCode,
                                                     "; 1 and 2 mean that there is no verdict"));
    }
    codes.codes_[static_cast<std::size_t>(outcome)] = code;
  }
  return codes;
}

}  // namespace lossgauge::ctl
