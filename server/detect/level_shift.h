// A loss that moved to a higher level and stays there: too little for a spike, too long for noise.
//
// A clipped CUSUM against the median of the last accepted values. While the sum is above zero nothing enters that baseline, so a shift
// cannot hide by becoming its own reference. The reference is not extrapolated along the trend: a falling loss only makes the test milder,
// and a convex descent never looks like a shift. A sum that starts late finds two deviations within fifteen steps only most of the time, so the
// sum of the last fifteen is looked at as well: twenty deviations are 5.2 of their own. All alarms rise with the lag-one correlation of the steps,
// which would be mistaken for a shift.
//
// A shift of one deviation is beyond these: a second sum with half the slack finds it after 27 steps (median), against a mean of about 256 values, since
// the median of 128 errs by a tenth of a deviation, a fifth of what is looked for. It stands still, too, once that sum is well above zero. A shift that
// begins below two deviations is information until it is one and a half high, and over only where the level is back: halfway down is within its noise.
//
// A shift that grows without ever jumping is a divergence that no rule for spikes sees, because their trend follows it: level_shift becomes
// divergence (warning) at a nat and six deviations, and critical where divergence_nats and three deviations are kept for unrecovered_steps.
#ifndef LOSSGAUGE_SERVER_DETECT_LEVEL_SHIFT_H_
#define LOSSGAUGE_SERVER_DETECT_LEVEL_SHIFT_H_

#include <array>
#include <cstdint>
#include <optional>

#include "server/detect/best_level.h"
#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/sorted_window.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

class LevelShiftDetector {
 public:
  static constexpr int kWindow = 128;
  // `loss_flagged`: the value belongs to an open spike and is no evidence here.
  void OnStep(const StepSignals& signals, bool loss_flagged, const Policy& policy, IncidentBook& book);
  // A spike that did not recover ended as a shift.
  void Adopt(double from_nats, double to_nats, std::int64_t onset_step, const StepSignals& signals, const Policy& policy, IncidentBook& book);
  // The shift was acknowledged: its level is the new normal.
  void Accept(const Moment& moment, IncidentBook& book);
  void OnAttempt() { *this = LevelShiftDetector(); }
  bool open() const { return open_; }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  static constexpr int kPending = 64;
  static constexpr int kShort = 15;
  void Take(double loss);
  void FlushPending();
  // `loss_flagged`: an episode of the loss is open, and what grows now is its business.
  void Grade(bool loss_flagged, const Policy& policy);
  void ReportTo(IncidentBook& book, const StepSignals& signals, const Policy& policy) const;

  BestLevel best_;
  SortedWindow<kWindow> accepted_;
  SortedWindow<31> recent_;
  double lag_product_ = 0;  // sums over accepted values, fading: their ratio is the lag-one correlation
  double lag_square_ = 0;
  double previous_deviation_ = 0;
  double sum_ = 0;
  double mean_ = 0;  // of accepted values, fading
  std::int32_t mean_count_ = 0;
  double slow_sum_ = 0;
  std::int64_t slow_start_step_ = 0;
  std::array<double, kShort> short_{};  // the newest deviations, clipped
  std::int32_t short_count_ = 0;
  std::array<float, kPending> pending_{};
  std::int32_t pending_count_ = 0;
  std::int64_t sum_start_step_ = 0;

  bool open_ = false;
  bool small_ = false;  // below two deviations when it was opened
  bool diverging_ = false;
  bool critical_ = false;
  std::int32_t points_ = 0;  // since it was opened
  double reference_ = 0;
  double scale_ = 0;
  double peak_nats_ = 0;
  std::int64_t onset_step_ = 0;
  std::int64_t peak_step_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_LEVEL_SHIFT_H_
