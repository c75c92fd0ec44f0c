// The last sixteen losses as they came, flagged or not: is the curve still climbing, did it fall off a cliff?
#ifndef LOSSGAUGE_SERVER_DETECT_RECENT_VALUES_H_
#define LOSSGAUGE_SERVER_DETECT_RECENT_VALUES_H_

#include <array>

#include "server/detect/state_codec.h"

namespace lossgauge::detect {

class RecentValues {
 public:
  static constexpr int kLength = 16;
  void Push(double value);
  void Clear() { size_ = next_ = 0; }
  int size() const { return size_; }
  // i = 0: the newest. Precondition: i < size().
  double Get(int i) const { return values_[(next_ - 1 - i + 2 * kLength) % kLength]; }
  // Of values first..first+count-1 counted from the newest; count odd or even, at least 1, within size().
  double MedianOf(int first, int count) const;
  // Three thirds of the last 15 values, each clearly above the one before: a rise that never paused. `least_nats` over all.
  bool Rising(double least_nats) const;

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  std::array<double, kLength> values_{};
  int size_ = 0;
  int next_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_RECENT_VALUES_H_
