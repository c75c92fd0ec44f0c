#include "server/detect/recent_values.h"

#include <algorithm>
#include <cmath>

namespace lossgauge::detect {
namespace {

double MedianInPlace(double* values, int count) {
  std::sort(values, values + count);
  return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

}  // namespace

void RecentValues::Push(double value) {
  values_[next_] = value;
  next_ = (next_ + 1) % kLength;
  size_ = std::min(size_ + 1, kLength);
}

double RecentValues::MedianOf(int first, int count) const {
  std::array<double, kLength> copy;
  for (int i = 0; i < count; ++i) copy[i] = Get(first + i);
  return MedianInPlace(copy.data(), count);
}

bool RecentValues::Rising(double least_nats) const {
  if (size_ < 15) return false;
  // Cheap tests first: this runs at every step.
  if (!(Get(2) - Get(12) > 0.5 * least_nats)) return false;
  const double oldest = MedianOf(10, 5);
  const double middle = MedianOf(5, 5);
  const double newest = MedianOf(0, 5);
  if (!(newest - oldest >= least_nats && middle - oldest >= 0.25 * least_nats && newest - middle >= 0.25 * least_nats)) return false;
  std::array<double, kLength> steps;
  for (int i = 0; i < 14; ++i) steps[i] = std::fabs(Get(i) - Get(i + 1));
  const double noise = 1.4826 / std::sqrt(2.0) * MedianInPlace(steps.data(), 14);
  return newest - oldest >= 6 * noise;
}

void RecentValues::Save(StateWriter& out) const {
  out.Put(static_cast<std::uint8_t>(size_));
  for (int i = size_ - 1; i >= 0; --i) out.Put(Get(i));
}

void RecentValues::Restore(StateReader& in) {
  Clear();
  const int count = in.GetIn<std::uint8_t>(0, kLength);
  for (int i = 0; i < count; ++i) Push(in.GetFinite());
}

}  // namespace lossgauge::detect
