// What a verdict must always carry, and the code that it begins with.
#ifndef LOSSGAUGE_TESTS_SERVER_DETECT_VERDICT_CHECKS_H_
#define LOSSGAUGE_TESTS_SERVER_DETECT_VERDICT_CHECKS_H_

#include <gtest/gtest.h>

#include <string>

#include "server/state/verdict.h"

namespace lossgauge::testing {

inline std::string Code(const state::Verdict& verdict) { return verdict.reason_codes.empty() ? "" : verdict.reason_codes[0]; }

inline void ExpectComplete(const state::Verdict& verdict) {
  EXPECT_GT(verdict.valid_until_ns, verdict.evaluated_at_ns);
  EXPECT_FALSE(verdict.evidence.empty());
  EXPECT_FALSE(verdict.reason.empty());
  EXPECT_FALSE(verdict.reason_codes.empty());
  EXPECT_FALSE(verdict.policy_version.empty());
}

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_DETECT_VERDICT_CHECKS_H_
