// bf16 as bits, for what the example fills in and compares on the host.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_BF16_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_BF16_H_

#include <cstdint>
#include <cstring>

namespace lossgauge::pipeline_8b {

inline float FromBf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
// To nearest, ties to even; NaN stays one.
inline std::uint16_t ToBf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_BF16_H_
