// Which of a product's candidate algorithms is kept, by their times. Pure arithmetic.
#ifndef LOSSGAUGE_KERNELS_CUDA_CANDIDATE_TIMES_H_
#define LOSSGAUGE_KERNELS_CUDA_CANDIDATE_TIMES_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lossgauge::cuda {

// Candidates in the order of the library's own preference, 0 first.
class CandidateTimes {
 public:
  explicit CandidateTimes(std::size_t candidates) : times_(candidates), usable_(candidates, true) {}

  std::size_t size() const { return times_.size(); }
  bool IsUsable(std::size_t i) const { return usable_[i]; }
  void LeaveOut(std::size_t i) { usable_[i] = false; }
  void Add(std::size_t i, float ms) { times_[i].push_back(ms); }
  // Those that are so far behind that no further round would bring them to the front.
  void LeaveOutSlow() {
    const float limit = kFarBehind * Fastest();
    for (std::size_t i = 0; i < size(); ++i) usable_[i] = Counts(i) && Median(i) <= limit;
  }
  // The first one that is as good as the fastest; -1 = none ran. What differs by less than a clock wavers would be another one in the next process, and with it
  // the bits of every product.
  int Choice() const {
    const float limit = kAsGood * Fastest();
    for (std::size_t i = 0; i < size(); ++i) {
      if (Counts(i) && Median(i) <= limit) return static_cast<int>(i);
    }
    return -1;
  }

 private:
  static constexpr float kFarBehind = 1.2f, kAsGood = 1.02f;

  bool Counts(std::size_t i) const { return usable_[i] && !times_[i].empty(); }
  float Median(std::size_t i) const {
    std::vector<float> times = times_[i];
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }
  float Fastest() const {
    float fastest = 0;
    bool any = false;
    for (std::size_t i = 0; i < size(); ++i) {
      if (!Counts(i)) continue;
      fastest = any ? std::min(fastest, Median(i)) : Median(i);
      any = true;
    }
    return fastest;
  }

  std::vector<std::vector<float>> times_;
  std::vector<bool> usable_;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_CANDIDATE_TIMES_H_
