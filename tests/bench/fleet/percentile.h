#ifndef LOSSGAUGE_TESTS_BENCH_FLEET_PERCENTILE_H_
#define LOSSGAUGE_TESTS_BENCH_FLEET_PERCENTILE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace lossgauge::fleet {

// share: 0 to 1. NaN of no values.
inline double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return std::nan("");
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace lossgauge::fleet

#endif  // LOSSGAUGE_TESTS_BENCH_FLEET_PERCENTILE_H_
