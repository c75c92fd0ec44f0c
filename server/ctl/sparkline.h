// The last values of a series as one line of text.
#ifndef LOSSGAUGE_SERVER_CTL_SPARKLINE_H_
#define LOSSGAUGE_SERVER_CTL_SPARKLINE_H_

#include <cstddef>
#include <span>
#include <string>

namespace lossgauge::ctl {

// One character a value, scaled between the smallest and the largest finite one; a value that is not finite shows as "×" ("!" without Unicode).
std::string Sparkline(std::span<const double> values, bool unicode);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_SPARKLINE_H_
