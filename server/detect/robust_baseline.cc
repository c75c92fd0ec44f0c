#include "server/detect/robust_baseline.h"

#include <algorithm>
#include <cmath>

namespace lossgauge::detect {
namespace {

// Steady gains. 0.15 inflates the variance of a prediction by 8 % over the noise and follows a bend within about ten steps.
constexpr double kLevelGain = 0.15;
constexpr double kSlopeGain = 0.012;  // critically damped: level^2 / (2 - level)
constexpr double kClip = 4;           // scales: one odd value moves the level by less than a scale

}  // namespace

void RobustBaseline::Accept(double value) {
  if (age_ == 0) {
    level_ = value;
    slope_ = 0;
    age_ = 1;
    accepted_ = std::min(accepted_ + 1, 1 << 30);
    return;
  }
  const double predicted = level_ + slope_;
  const double residual = value - predicted;
  double innovation = residual;
  if (residuals_.size() >= 32) {
    // About zero, though the residuals may have a bias: an innovation whose sign is turned drives the level away for good.
    const double reach = kClip * std::max(Scale(), 1e-12) + std::fabs(residuals_.Median());
    innovation = std::clamp(innovation, -reach, reach);
  }
  if (age_ > 2) {
    residuals_.Add(residual);
    newest_.Add(residual);
  }
  const double n = age_ + 1;
  const double level_gain = std::max(kLevelGain, 2 * (2 * n - 1) / (n * (n + 1)));
  const double slope_gain = std::max(kSlopeGain, 6 / (n * (n + 1)));
  level_ = predicted + std::min(1.0, level_gain) * innovation;
  slope_ += std::min(1.0, slope_gain) * innovation;
  age_ = std::min(age_ + 1, 1 << 20);
  accepted_ = std::min(accepted_ + 1, 1 << 30);
}

void RobustBaseline::Reseat(double level) {
  level_ = level;
  slope_ = 0;
  newest_.Shift(-residuals_.Median());
  residuals_.Shift(-residuals_.Median());  // what the old level was off by says nothing of the new one
  age_ = 16;  // gains begin near their steady values: the new level is known, its slope not
}

double RobustBaseline::Rewind(std::int64_t steps) {
  if (age_ == 0 || steps <= 0) return 0;
  const double moved = slope_ * static_cast<double>(steps);
  if (moved >= 0) return 0;
  level_ -= moved;
  return -moved;
}

void RobustBaseline::Clear() { *this = RobustBaseline(); }

void RobustBaseline::Save(StateWriter& out) const {
  residuals_.Save(out);
  newest_.Save(out);
  out.Put(level_);
  out.Put(slope_);
  out.Put(accepted_);
  out.Put(age_);
}

void RobustBaseline::Restore(StateReader& in) {
  residuals_.Restore(in);
  newest_.Restore(in);
  level_ = in.GetFinite();
  slope_ = in.GetFinite();
  accepted_ = in.GetIn<std::int32_t>(0, 1 << 30);
  age_ = in.GetIn<std::int32_t>(0, 1 << 20);
}

}  // namespace lossgauge::detect
