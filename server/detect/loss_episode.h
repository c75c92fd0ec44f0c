// The loss against its own past: blip, loss_spike, divergence.
//
//   quiet --- a point above the threshold ---> blip (info)
//   blip  --- a second high point, or the gradient norm was high ---> loss_spike (warning)
//   loss_spike --- 30 clean steps ---> quiet;  --- not back after M steps ---> divergence (critical) or level_shift
//   any   --- a rise that never paused ---> divergence (warning; critical once older than any recovery on record)
//
// Where odd batches are usual (three blips in 512 points), two of them in a row are chance, and it takes three of four points to make a spike.
//
// Flagged values never enter the baseline, so that neither a spike nor its echo raises the bar for the next one.
#ifndef LOSSGAUGE_SERVER_DETECT_LOSS_EPISODE_H_
#define LOSSGAUGE_SERVER_DETECT_LOSS_EPISODE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/recent_values.h"
#include "server/detect/record_highs.h"
#include "server/detect/robust_baseline.h"
#include "server/detect/spike_cause.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

class LossEpisode {
 public:
  // What a step without a recovery in M steps was: a shift small enough to train on. The judge hands it to the level-shift detector.
  struct Shift {
    double from_nats = 0;
    double to_nats = 0;
    std::int64_t onset_step = 0;
  };

  // Precondition: signals.loss has a value. Returns a shift if an episode ended as one.
  std::optional<Shift> OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  // A new attempt begins at `first_step`, after `last_step` of the one before. True: too far back, the baseline begins anew.
  bool OnAttempt(std::int64_t first_step, std::int64_t last_step);

  bool warm(const Policy& policy) const { return baseline_.accepted() >= policy.loss_baseline_steps; }
  int accepted() const { return baseline_.accepted(); }
  bool open() const { return open_; }
  // A spike that was high a point or two ago: what is odd now is its echo.
  bool in_echo() const { return spike_ && clean_ < 3; }
  // True if the newest value was above the threshold.
  bool flagged() const { return flagged_; }
  // What the loss should be now. Meaningful once warm.
  double center() const { return reference_.value_or(baseline_.Center()); }
  double threshold(const Policy& policy) const;
  const RecentValues& recent() const { return recent_; }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  static constexpr IncidentBook::Slot kSlot{state::Condition::kLossSpike};
  void Begin(const StepSignals& signals, double residual, double limit);
  void Update(const StepSignals& signals, double residual, double limit, const Policy& policy);
  void TakeCause(const SpikeCause& cause, const StepSignals& signals);
  void AcceptQuiet(double loss, double residual, double limit);
  void ReportTo(IncidentBook& book, const StepSignals& signals, double limit, const Policy& policy) const;
  void CloseEpisode();
  double RisingNats() const;  // what a rise must amount to
  bool IsSpike(double residual, double limit, bool high, const Policy& policy) const;
  bool HasOddBatches() const;  // blips come often here

  RobustBaseline baseline_;
  RecentValues recent_;
  RecordHighs records_;
  SignalTrail trail_;
  double rewind_slack_nats_ = 0;  // fades: a resumed attempt may start above the level that the trend extrapolates back to
  std::int32_t drops_ = 0;        // values far below in a row
  std::int64_t seen_ = 0;         // points
  std::array<std::int64_t, 3> odd_at_{-1, -1, -1};  // the last blips, newest first
  bool flagged_ = false;

  bool open_ = false;
  bool spike_ = false;      // more than a blip
  bool diverging_ = false;  // a rise that never paused, or not back in time
  bool critical_ = false;
  bool with_gradient_ = false;  // the onset was
  std::optional<double> reference_;  // of an episode that a rise opened: the level below it
  std::int64_t onset_step_ = 0;
  std::int64_t peak_step_ = 0;
  std::int64_t last_high_step_ = 0;
  double peak_nats_ = 0;
  double first_residual_ = 0;
  double peak_residual_ = 0;
  double area_nats_ = 0;
  std::int32_t points_ = 0;  // since onset, onset included
  std::int32_t high_ = 0;    // of them above the threshold
  std::uint32_t high_mask_ = 0;  // of the last 32 points
  std::int32_t clean_ = 0;
  std::int32_t hopeless_ = 0;  // in a row
  std::uint8_t cause_ = 0;   // index into state::kSpikeCauses
  std::optional<std::uint32_t> cause_rank_;
  std::string cause_words_;  // as it was when the cause showed, at the highest of its points
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_LOSS_EPISODE_H_
