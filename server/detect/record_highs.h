// Record highs in a row: the newest values all lie above everything in the window before them, by a fifth of its own reach. Needs no estimate of
// the noise, which is what fails on a loss that swings by its own size: of 64 + 5 values in any order, the five largest come last once in 1e7
// times; the margin is for steps that are correlated.
#ifndef LOSSGAUGE_SERVER_DETECT_RECORD_HIGHS_H_
#define LOSSGAUGE_SERVER_DETECT_RECORD_HIGHS_H_

#include <array>

#include "server/detect/sorted_window.h"

namespace lossgauge::detect {

class RecordHighs {
 public:
  static constexpr int kWindow = 64;
  static constexpr int kRun = 5;
  static constexpr double kMargin = 0.2;

  void Push(double value) {
    if (before_.full() && value > before_.Max() + kMargin * (before_.Max() - before_.Median())) {
      if (run_ == kRun) {  // the oldest of the run becomes part of what was before
        before_.Add(pending_[0]);
        std::copy(pending_.begin() + 1, pending_.end(), pending_.begin());
        --run_;
      }
      pending_[run_++] = value;
      return;
    }
    for (int i = 0; i < run_; ++i) before_.Add(pending_[i]);
    run_ = 0;
    before_.Add(value);
  }
  // Values in a row above all of the window before the first of them.
  int run() const { return run_; }
  bool complete() const { return run_ == kRun; }
  // The lowest of the run above the median of the window. Precondition: run() > 0.
  double Excess() const { return *std::min_element(pending_.begin(), pending_.begin() + run_) - before_.Median(); }
  double Median() const { return before_.Median(); }
  void Clear() { *this = RecordHighs(); }

  void Save(StateWriter& out) const {
    before_.Save(out);
    out.Put(static_cast<std::uint8_t>(run_));
    for (int i = 0; i < run_; ++i) out.Put(pending_[i]);
  }
  void Restore(StateReader& in) {
    before_.Restore(in);
    run_ = in.GetIn<std::uint8_t>(0, kRun);
    for (int i = 0; i < run_; ++i) pending_[i] = in.GetFinite();
  }

 private:
  SortedWindow<kWindow> before_;
  std::array<double, kRun> pending_{};
  int run_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_RECORD_HIGHS_H_
