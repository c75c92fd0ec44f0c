// How a question for a verdict can end, and the exit code of each: what a scheduler's script goes by.
#ifndef LOSSGAUGE_SERVER_CTL_EXIT_CODES_H_
#define LOSSGAUGE_SERVER_CTL_EXIT_CODES_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lossgauge/v1/lossgauge.pb.h"

namespace lossgauge::ctl {

enum class Outcome { kContinue, kWatch, kRestart, kHalt, kUnknown, kEnded, kTimeout, kUnreachable, kCount };

// "continue", "watch", "restart", "halt", "unknown", "ended", "timeout", "unreachable".
const char* OutcomeName(Outcome outcome);
// kCount for what is no name.
Outcome FindOutcome(std::string_view name);

// What a program may act upon. RESTART and HALT of a run in shadow mode are kWatch: nobody is to act on them. An action that this version does
// not know, and a verdict that had run out when it was given, are kUnknown; UNKNOWN after a clean end is kEnded.
Outcome OutcomeOf(const v1::Verdict& verdict_untrusted);

class ExitCodes {
 public:
  // "NAME=CODE,..." over the defaults. A code is 0 or from 3 to 255: 1 and 2 always mean that there is no verdict. INVALID_ARGUMENT names the word.
  static absl::StatusOr<ExitCodes> Parse(std::string_view text);

  int Of(Outcome outcome) const { return codes_[static_cast<std::size_t>(outcome)]; }

 private:
  std::array<int, static_cast<std::size_t>(Outcome::kCount)> codes_{0, 10, 20, 30, 40, 40, 50, 60};
};

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_EXIT_CODES_H_
