// What the next value of a series should be, and how far from it values usually fall.
//
// A level and a slope follow the series (an alpha-beta filter that begins as a straight-line fit), so that the steep initial descent of a
// loss does not look like noise; the residuals of the one-step predictions over the last 128 accepted values give median and MAD. The
// caller accepts only values that it holds to be sound: a value that was flagged never enters.
#ifndef LOSSGAUGE_SERVER_DETECT_ROBUST_BASELINE_H_
#define LOSSGAUGE_SERVER_DETECT_ROBUST_BASELINE_H_

#include <algorithm>
#include <cstdint>

#include "server/detect/sorted_window.h"
#include "server/detect/state_codec.h"

namespace lossgauge::detect {

// Not thread-safe. All values must be finite.
class RobustBaseline {
 public:
  static constexpr int kWindow = 128;

  // What the next value should be.
  double Center() const { return level_ + slope_ + residuals_.Median(); }
  // 1.4826 * MAD of the residuals: a standard deviation if they were Gaussian. 0 for a constant series. Where the newest quarter of them is much
  // quieter than all (the steep descent is over), it counts, with an allowance for its own uncertainty.
  double Scale() const {
    const double all = residuals_.RobustDeviation();
    return newest_.full() ? std::min(all, kNewestAllowance * 1.4826 * newest_.MedianAbsoluteDeviation()) : all;
  }
  int accepted() const { return accepted_; }

  void Accept(double value);
  // The series has moved to another level for good.
  void Reseat(double level);
  // The series begins again `steps` earlier: the trend is followed back. Returns how far, as a measure of what is not known.
  double Rewind(std::int64_t steps);
  void Clear();

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  static constexpr double kNewestAllowance = 1.5;
  SortedWindow<kWindow> residuals_;
  SortedWindow<kWindow / 4> newest_;  // of them
  double level_ = 0;
  double slope_ = 0;
  std::int32_t accepted_ = 0;
  std::int32_t age_ = 0;  // values since the filter was seated
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_ROBUST_BASELINE_H_
