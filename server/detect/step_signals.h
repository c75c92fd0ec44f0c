// The numbers of a step that several detectors look at, taken out of the joined step once; and what the quick detectors said of them.
#ifndef LOSSGAUGE_SERVER_DETECT_STEP_SIGNALS_H_
#define LOSSGAUGE_SERVER_DETECT_STEP_SIGNALS_H_

#include <cstdint>
#include <optional>

#include "server/detect/incident_book.h"
#include "server/state/joined_step.h"

namespace lossgauge::detect {

struct StepSignals {
  const state::JoinedStep* joined = nullptr;
  Moment moment;
  std::optional<double> loss;           // finite
  std::optional<double> grad_norm;      // finite and > 0
  std::optional<double> max_abs_logit;  // finite and > 0
  // Against the baseline; 1 where there is no baseline or no value.
  double grad_factor = 1;
  double logit_factor = 1;
  double tokens_factor = 1;         // unmasked tokens
  double learning_rate_factor = 1;  // against eight steps before
  bool grad_high = false;
  bool logit_high = false;
  bool tokens_odd = false;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_STEP_SIGNALS_H_
