// Spike rules that public training code uses, written anew from what they compute, for comparison with our detectors.
#ifndef LOSSGAUGE_TESTS_REPLAY_PUBLIC_RULES_H_
#define LOSSGAUGE_TESTS_REPLAY_PUBLIC_RULES_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "server/replay/log_point.h"

namespace lossgauge::replay {

// Flags points, one after the other. Values that are not finite are treated as the originals treat them: not at all.
class PublicRule {
 public:
  virtual ~PublicRule() = default;
  virtual std::string name() const = 0;
  virtual bool Flags(const LogPoint& point) = 0;
  virtual void BeginAttempt() = 0;  // a job that starts again starts its rule again
};

// Mean and sample deviation of the last 128 losses, flagged or not; above mean + 6 deviations; says nothing before 64.
std::unique_ptr<PublicRule> MakeSixSigmaRule();
// Above 10 times the largest loss of the first 100 points.
std::unique_ptr<PublicRule> MakeTenTimesMaximumRule();
// Above twice the first loss.
std::unique_ptr<PublicRule> MakeTwiceInitialRule();
// Gradient norm's exponential mean and variance (0.97), begun after 25 points; above 2.5 deviations, and then taken in the less the farther it is.
std::unique_ptr<PublicRule> MakeGradientEmaRule();

std::vector<std::unique_ptr<PublicRule>> MakePublicRules();

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_TESTS_REPLAY_PUBLIC_RULES_H_
