// dtypes of the tests' tensors, independent of the kernels' own conversions.
#ifndef LOSSGAUGE_TESTS_KERNELS_ELEMENTS_H_
#define LOSSGAUGE_TESTS_KERNELS_ELEMENTS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::test {

inline std::int64_t BytesOf(int dtype) { return dtype == LG_FP32 || dtype == LG_INT32 ? 4 : dtype == LG_INT64 ? 8 : 2; }

struct Format {
  int mantissa_bits;    // stored
  int lowest_exponent;  // of a normal number
  double largest;
};
inline Format FormatOf(int dtype) {
  if (dtype == LG_BF16) return {7, -126, 3.3895313892515355e38};
  if (dtype == LG_FP16) return {10, -14, 65504.0};
  return {23, -126, 3.4028234663852886e38};
}

// Distance between neighbours of the format at |value|.
inline double Ulp(int dtype, double value) {
  const Format format = FormatOf(dtype);
  int exponent = value == 0 ? format.lowest_exponent : std::ilogb(value);
  if (exponent < format.lowest_exponent) exponent = format.lowest_exponent;
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

// To nearest even.
inline double RoundTo(int dtype, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double ulp = Ulp(dtype, value);
  const double rounded = std::nearbyint(value / ulp) * ulp;
  return std::fabs(rounded) > FormatOf(dtype).largest ? std::copysign(HUGE_VAL, value) : rounded;
}

inline void Store(int dtype, double value, unsigned char* to) {
  if (dtype == LG_FP32) {
    const float narrow = static_cast<float>(value);
    std::memcpy(to, &narrow, 4);
    return;
  }
  const Format format = FormatOf(dtype);
  const int bias = dtype == LG_BF16 ? 127 : 15;
  const double rounded = RoundTo(dtype, value);
  std::uint32_t bits = std::signbit(value) ? 0x8000u : 0u;
  const double magnitude = std::fabs(rounded);
  if (std::isnan(value)) {
    bits = dtype == LG_BF16 ? 0x7fc0u : 0x7e00u;
  } else if (std::isinf(rounded)) {
    bits |= dtype == LG_BF16 ? 0x7f80u : 0x7c00u;
  } else if (magnitude < std::ldexp(1.0, format.lowest_exponent)) {
    bits |= static_cast<std::uint32_t>(std::ldexp(magnitude, format.mantissa_bits - format.lowest_exponent));
  } else {
    const int exponent = std::ilogb(magnitude);
    const double fraction = std::ldexp(magnitude, -exponent) - 1.0;
    bits |= static_cast<std::uint32_t>(exponent + bias) << format.mantissa_bits;
    bits |= static_cast<std::uint32_t>(std::ldexp(fraction, format.mantissa_bits));
  }
  const auto half = static_cast<std::uint16_t>(bits);
  std::memcpy(to, &half, 2);
}

inline double Load(int dtype, const unsigned char* from) {
  if (dtype == LG_FP32) {
    float value;
    std::memcpy(&value, from, 4);
    return static_cast<double>(value);
  }
  std::uint16_t bits;
  std::memcpy(&bits, from, 2);
  const Format format = FormatOf(dtype);
  const int bias = dtype == LG_BF16 ? 127 : 15;
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const int fraction = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (0x7fff >> format.mantissa_bits)) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, format.lowest_exponent - format.mantissa_bits);
  return sign * std::ldexp(1.0 + std::ldexp(fraction, -format.mantissa_bits), exponent - bias);
}

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_ELEMENTS_H_
