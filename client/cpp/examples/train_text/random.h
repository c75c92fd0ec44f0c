// Random numbers as a pure function of their place: (seed, stream, index). No state, so a resumed or re-cut job draws the same.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_RANDOM_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_RANDOM_H_

#include <cmath>
#include <cstdint>

namespace lossgauge::train_text {

// A bijection of 64 bits in which every input bit reaches every output bit.
inline std::uint64_t MixBits(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

inline std::uint64_t RandomBits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return MixBits(MixBits(MixBits(seed + 0x632be59bd9b4e019u) ^ stream) + index);
}

// In (0, 1).
inline double RandomUniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return (static_cast<double>(RandomBits(seed, stream, index) >> 12) + 0.5) * 0x1p-52;
}

// Standard normal.
inline double RandomNormal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const double radius = std::sqrt(-2 * std::log(RandomUniform(seed, stream, 2 * index)));
  return radius * std::cos(6.283185307179586 * RandomUniform(seed, stream, 2 * index + 1));
}

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_RANDOM_H_
