// Statistics that a job computed itself, as the counters of a step take them. One rule for the host, and for a device that reads them where they are.
#ifndef LOSSGAUGE_KERNELS_HOST_OBSERVED_H_
#define LOSSGAUGE_KERNELS_HOST_OBSERVED_H_

#include <math.h>
#include <stdint.h>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {

// An observation's sum is clamped as its rows would have been, and so that tens of thousands of clamped ones still fit the 64 bits before the point.
constexpr double kMostNllOfARow = 2147483648.;         // 2^31
constexpr double kMostObservedNll = 140737488355328.;  // 2^47

struct Observed {
  double nll_sum;
  long long tokens, unmasked_tokens, nonfinite_rows;
  double denominator;  // 0 = none
  // Memory where the counters are, to be read instead when the step gets them; null = as above.
  const double* nll_sum_pointer;
  const long long* unmasked_tokens_pointer;  // then tokens 0 = as many as unmasked
  const double* denominator_pointer;
};

struct ObservedCounts {
  unsigned long long tokens, unmasked_tokens, finite_tokens, nonfinite_rows, clamped_rows;
  lg_fixed128 nll_sum;
  double denominator;
};

// What was read is not checked by anybody: numbers out of range become the nearest in it, and a sum below 0 is none, like one that is not finite. Such a
// sum tells nothing about any of its rows: all of them are out, and the step is marked.
LG_RING_FN ObservedCounts CountObserved(Observed o) {
  if (o.nll_sum_pointer != nullptr) o.nll_sum = *o.nll_sum_pointer;
  if (o.unmasked_tokens_pointer != nullptr) {
    o.unmasked_tokens = *o.unmasked_tokens_pointer;
    if (o.unmasked_tokens < 0) o.unmasked_tokens = 0;
    if (o.tokens == 0) o.tokens = o.unmasked_tokens;
    if (o.unmasked_tokens > o.tokens) o.unmasked_tokens = o.tokens;
    if (o.nonfinite_rows > o.unmasked_tokens) o.nonfinite_rows = o.unmasked_tokens;
  }
  if (o.denominator_pointer != nullptr) {
    o.denominator = *o.denominator_pointer;
    if (!(o.denominator > 0) || !(o.denominator < HUGE_VAL)) o.denominator = 0;
  }
  ObservedCounts counts;
  counts.tokens = static_cast<unsigned long long>(o.tokens);
  counts.unmasked_tokens = static_cast<unsigned long long>(o.unmasked_tokens);
  counts.nonfinite_rows = static_cast<unsigned long long>(o.nonfinite_rows);
  counts.finite_tokens = counts.unmasked_tokens - counts.nonfinite_rows;
  counts.clamped_rows = 0;
  counts.denominator = o.denominator;
  counts.nll_sum = lg_fixed128_make(0, 0);
  if (!(o.nll_sum >= 0) || !(o.nll_sum < HUGE_VAL)) {
    counts.nonfinite_rows = counts.unmasked_tokens;
    counts.finite_tokens = 0;
    return counts;
  }
  double most = kMostNllOfARow * static_cast<double>(counts.finite_tokens);
  if (most > kMostObservedNll) most = kMostObservedNll;
  counts.clamped_rows = o.nll_sum > most ? 1 : 0;
  counts.nll_sum = lg_fixed128_from_double(counts.clamped_rows != 0 ? most : o.nll_sum);
  return counts;
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_OBSERVED_H_
