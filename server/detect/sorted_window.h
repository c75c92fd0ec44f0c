// The last N values in order of size as well as of arrival: median and median absolute deviation without a sort per step.
#ifndef LOSSGAUGE_SERVER_DETECT_SORTED_WINDOW_H_
#define LOSSGAUGE_SERVER_DETECT_SORTED_WINDOW_H_

#include <algorithm>
#include <array>
#include <cmath>

#include "server/detect/state_codec.h"

namespace lossgauge::detect {

// Values are kept as float, so that a restored window is the same to the last bit and half the size. Only finite values may be added.
template <int kCapacity>
class SortedWindow {
 public:
  int size() const { return size_; }
  bool full() const { return size_ == kCapacity; }

  void Add(double value) {
    deviation_ = -1;
    const float added = static_cast<float>(std::clamp(value, -1e37, 1e37));
    if (size_ == kCapacity) {
      const float oldest = arrival_[next_];
      auto* end = sorted_.data() + size_;
      auto* at = std::lower_bound(sorted_.data(), end, oldest);
      std::copy(at + 1, end, at);
      --size_;
    }
    auto* end = sorted_.data() + size_;
    auto* at = std::upper_bound(sorted_.data(), end, added);
    std::copy_backward(at, end, end + 1);
    *at = added;
    arrival_[next_] = added;
    next_ = (next_ + 1) % kCapacity;
    ++size_;
  }

  // Adds to every value.
  void Shift(double by) {
    for (int i = 0; i < size_; ++i) {
      sorted_[static_cast<std::size_t>(i)] += static_cast<float>(by);
      float& at = arrival_[static_cast<std::size_t>((next_ - 1 - i + 2 * kCapacity) % kCapacity)];
      at += static_cast<float>(by);
    }
    deviation_ = -1;
  }

  void Clear() {
    size_ = next_ = 0;
    deviation_ = -1;
  }

  // 0 if empty.
  double Median() const {
    if (size_ == 0) return 0;
    return 0.5 * (double{sorted_[(size_ - 1) / 2]} + double{sorted_[size_ / 2]});
  }

  // The standard deviation that the median absolute deviation stands for where values are Gaussian.
  double RobustDeviation() const { return 1.4826 * MedianAbsoluteDeviation(); }

  // -infinity if empty.
  double Max() const { return size_ == 0 ? -HUGE_VAL : double{sorted_[static_cast<std::size_t>(size_ - 1)]}; }

  // Median of |value - Median()|; 0 if empty. Computed once per change.
  double MedianAbsoluteDeviation() const {
    if (size_ == 0) return 0;
    if (deviation_ < 0) deviation_ = ComputeDeviation();
    return deviation_;
  }

  // i = 0: the newest. Precondition: i < size().
  double Recent(int i) const { return arrival_[(next_ - 1 - i + 2 * kCapacity) % kCapacity]; }

  void Save(StateWriter& out) const {
    out.Put(static_cast<std::uint16_t>(size_));
    for (int i = size_ - 1; i >= 0; --i) out.Put(static_cast<float>(Recent(i)));
  }
  void Restore(StateReader& in) {
    Clear();
    const int count = in.GetIn<std::uint16_t>(0, kCapacity);
    for (int i = 0; i < count; ++i) Add(in.GetIn<float>(-1e38f, 1e38f));
  }

 private:
  double ComputeDeviation() const {
    const double upper = Distance(size_ / 2);
    return size_ % 2 == 1 ? upper : 0.5 * (Distance(size_ / 2 - 1) + upper);
  }
  // The k-th smallest distance from the median, k from 0. Those below it and those above it are two rising sequences: a binary search finds how many of
  // the k + 1 smallest come from below.
  double Distance(int k) const {
    const double median = Median();
    const int below = (size_ - 1) / 2 + 1;
    const int above = size_ - below;
    const auto lower = [&](int i) { return median - sorted_[static_cast<std::size_t>(below - 1 - i)]; };
    const auto higher = [&](int i) { return sorted_[static_cast<std::size_t>(below + i)] - median; };
    int low = std::max(0, k + 1 - above);
    int high = std::min(k + 1, below);
    while (low < high) {
      const int from_below = (low + high) / 2;
      if (lower(from_below) < higher(k - from_below)) {
        low = from_below + 1;
      } else {
        high = from_below;
      }
    }
    const double last_below = low > 0 ? lower(low - 1) : 0;
    const double last_above = k + 1 - low > 0 ? higher(k - low) : 0;
    return std::max(last_below, last_above);
  }

  std::array<float, kCapacity> sorted_{};
  std::array<float, kCapacity> arrival_{};
  int size_ = 0;
  int next_ = 0;
  mutable double deviation_ = -1;  // negative: to be computed
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_SORTED_WINDOW_H_
