// The three element types of logits, one element at a time. Rounding is to
// nearest even, NaN stays NaN, also where the machine has no instruction for
// it. Static on purpose: compiled for several instruction sets, and the linker
// must not mix them.
#ifndef LOSSGAUGE_KERNELS_CPU_ELEMENTS_H_
#define LOSSGAUGE_KERNELS_CPU_ELEMENTS_H_

#include <cstdint>
#include <cstring>

namespace lossgauge::cpu {

static inline float BitsToFloat(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline std::uint32_t FloatToBits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float Bf16ToFloat(std::uint16_t bits) { return BitsToFloat(static_cast<std::uint32_t>(bits) << 16); }
static inline std::uint16_t FloatToBf16(float value) {
  const std::uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float Fp16ToFloat(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u;
  const std::uint32_t fraction = half & 1023u;
  if (exponent == 31) return BitsToFloat(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return BitsToFloat(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return BitsToFloat(sign | FloatToBits(magnitude));
}
static inline std::uint16_t FloatToFp16(float value) {
  const std::uint32_t bits = FloatToBits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the last bit worth 2^-24, and the addition
    // rounds to nearest even.
    const float shifted = BitsToFloat(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (FloatToBits(shifted) - 0x3f000000u));
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u) >> 13));
}

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_ELEMENTS_H_
