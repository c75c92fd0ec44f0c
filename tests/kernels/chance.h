// Numbers by chance from a given seed, the same on every machine.
#ifndef LOSSGAUGE_TESTS_KERNELS_CHANCE_H_
#define LOSSGAUGE_TESTS_KERNELS_CHANCE_H_

#include <cmath>
#include <cstdint>
#include <random>

namespace lossgauge::test {

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : engine_(seed) {}
  bool OneIn(int n) { return Below(n) == 0; }
  std::int64_t Below(std::int64_t n) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n)); }
  double Uniform(double low, double high) { return low + (high - low) * (static_cast<double>(engine_() >> 11) * 0x1p-53); }
  double Normal() { return std::sqrt(-2 * std::log(Uniform(1e-12, 1))) * std::cos(Uniform(0, 6.283185307179586)); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_CHANCE_H_
