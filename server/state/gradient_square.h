// Squares of gradients from what a rank summed of them.
#ifndef LOSSGAUGE_SERVER_STATE_GRADIENT_SQUARE_H_
#define LOSSGAUGE_SERVER_STATE_GRADIENT_SQUARE_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::state {

// The square of a gradient's norm. `sum` is one of the record's sums of (gradient * denominator)^2, `bit` its bit of `present`. nullopt if the rank did not
// measure it, or if its launches had different denominators: that cannot be undone.
inline std::optional<double> GradientSquare(const lg_step_record& record, std::uint64_t bit, const lg_fixed128& sum) {
  const std::uint64_t needed = bit | LG_HAS_DENOMINATOR;
  if ((record.present & needed) != needed || record.denominator_min != record.denominator_max || !(record.denominator_min > 0)) return std::nullopt;
  // A sum of differences may end a rounding below 0.
  return std::max(0.0, lg_fixed128_to_double(sum)) / (record.denominator_min * record.denominator_min);
}

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_GRADIENT_SQUARE_H_
