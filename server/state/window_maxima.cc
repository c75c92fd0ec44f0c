#include "server/state/window_maxima.h"

#include <cmath>

namespace lossgauge::state {
namespace {

void Raise(std::optional<double>* maximum, const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return;
  if (!*maximum || *value > **maximum) *maximum = value;
}

void RaiseAll(WindowMaxima* maxima, const WindowMaxima& values) {
  Raise(&maxima->loss_nats, values.loss_nats);
  Raise(&maxima->max_abs_logit, values.max_abs_logit);
  Raise(&maxima->grad_norm, values.grad_norm);
  Raise(&maxima->log_z_max_nats, values.log_z_max_nats);
  Raise(&maxima->step_seconds, values.step_seconds);
}

}  // namespace

void WindowTracker::Add(TimeNs time_ns, const WindowMaxima& values) {
  const std::int64_t number = time_ns / kWindowNs;
  Window& window = windows_[static_cast<std::size_t>(number) % kWindows];
  if (number < window.number) return;  // older than a minute
  if (number > window.number) window = Window{number, {}};
  RaiseAll(&window.maxima, values);
}

WindowMaxima WindowTracker::Maxima(TimeNs now_ns) const {
  const std::int64_t number = now_ns / kWindowNs;
  WindowMaxima maxima;
  for (const Window& window : windows_) {
    if (window.number >= 0 && window.number > number - static_cast<std::int64_t>(kWindows)) RaiseAll(&maxima, window.maxima);
  }
  return maxima;
}

}  // namespace lossgauge::state
