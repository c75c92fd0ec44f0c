#include "server/ctl/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lossgauge::ctl {

std::string Sparkline(std::span<const double> values, bool unicode) {
  constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char*, 8> kAscii = {"_", ".", ":", "-", "=", "+", "*", "#"};
  const auto& levels = unicode ? kBlocks : kAscii;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string line;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      line += unicode ? "×" : "!";
      continue;
    }
    // Halves, so that the range of two huge values of opposite sign does not overflow. A flat line is drawn low.
    const double share = high > low ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0;
    line += levels[std::min<std::size_t>(static_cast<std::size_t>(share * 8), 7)];
  }
  return line;
}

}  // namespace lossgauge::ctl
