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
  std::int64_t interval_steps = 1;      // between two steps that are seen: above 1 in sparse logs
  // Against the baseline; 1 where there is no baseline or no value.
  double grad_factor = 1;
  double logit_factor = 1;
  double tokens_factor = 1;         // unmasked tokens
  double learning_rate_factor = 1;  // against eight steps before
  bool grad_high = false;
  bool grad_large = false;  // by the factor that needs no quiet series
  bool logit_high = false;
  bool tokens_odd = false;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_STEP_SIGNALS_H_
