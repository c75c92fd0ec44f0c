#include "server/detect/factor_watch.h"

#include <algorithm>
#include <cmath>

namespace lossgauge::detect {
namespace {

// After this many flagged values in a row the series lives at another level; going on to flag it would blind the watch for good.
constexpr int kReseatAfter = 64;

}  // namespace

FactorWatch::Result FactorWatch::OnValue(double value, double deviations, double factor, int baseline_steps) {
  const double log_value = std::log(value);
  Result result;
  if (baseline_.accepted() >= baseline_steps) {
    const double center = baseline_.Center();
    const double limit = std::max(std::log(factor), deviations * baseline_.Scale());
    result.factor = std::exp(std::clamp(log_value - center, -600.0, 600.0));
    result.expected = std::exp(std::clamp(center, -600.0, 600.0));
    result.high = log_value - center > limit;
  }
  if (!result.high) {
    high_run_ = 0;
    baseline_.Accept(log_value);
  } else if (++high_run_ >= kReseatAfter) {
    high_run_ = 0;
    baseline_.Reseat(log_value);
  }
  return result;
}

void FactorWatch::Clear() { *this = FactorWatch(); }

void FactorWatch::Save(StateWriter& out) const {
  baseline_.Save(out);
  out.Put(high_run_);
}

void FactorWatch::Restore(StateReader& in) {
  baseline_.Restore(in);
  high_run_ = in.GetIn<std::int32_t>(0, kReseatAfter);
}

}  // namespace lossgauge::detect
