// The comparison of a resumed job's steps with those of the attempts before it (attempt_comparison.h), as they come.
#ifndef LOSSGAUGE_SERVER_STATE_ATTEMPT_COMPARER_H_
#define LOSSGAUGE_SERVER_STATE_ATTEMPT_COMPARER_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/state/attempt_comparison.h"
#include "server/state/joined_step.h"

namespace lossgauge::state {

// Steps that were kept, in memory and in the history.
class KeptSteps {
 public:
  virtual ~KeptSteps() = default;
  // Of all attempts, those from first to last, as they were (not thinned), oldest first. What cannot be read is left out.
  virtual std::vector<std::shared_ptr<const StepSummary>> Read(std::int64_t first_step, std::int64_t last_step) = 0;
};

// Compares the steps of one attempt with what was kept of the attempts before it. Not thread-safe. Holds a window of the earlier passes around the step
// it is at, and reads the next one when it comes to its end.
class AttemptComparer {
 public:
  static constexpr std::int64_t kStepsBehind = 512;  // of the present step, where a loader that fell behind finds its targets
  static constexpr std::int64_t kStepsAhead = 2048;

  // Of a step that several attempts have, the last one counts. `so_far` as of before a restart of lossgauged; with what is kept of the attempt itself
  // the comparison then goes on as if there had been none. `passes`: of which attempts there were steps, oldest first, whether they are kept or not.
  void Begin(const std::string& attempt, std::shared_ptr<KeptSteps> kept, const std::optional<AttemptComparison>& so_far,
             std::vector<AttemptSpan> passes = {});
  // Steps rise. True if the result changed.
  bool OnStep(const StepSummary& step);
  const std::string& attempt() const { return attempt_; }
  const std::optional<AttemptComparison>& result() const { return result_; }

 private:
  struct Pass {
    std::string attempt;
    std::optional<double> loss_nats;  // over its finite rows
    bool all_finite = true;
    std::uint64_t target_fingerprint = 0;
    std::uint64_t mask_fingerprint = 0;
  };
  static constexpr std::size_t kWindow = 16;
  // So that the window has `step`.
  void Slide(std::int64_t step);
  void RefillDifferences(const std::vector<std::shared_ptr<const StepSummary>>& kept, std::int64_t before_step);
  void Note(std::int64_t step, double difference);
  // Makes a result if there is none yet.
  AttemptComparison* Result(const std::string& with_attempt);
  void CompareData(const StepSummary& step, const Pass& before);
  void CompareLoss(const StepSummary& step, double before);
  void MarkNonfinite(std::int64_t step);

  std::string attempt_;
  std::shared_ptr<KeptSteps> kept_;
  std::map<std::int64_t, Pass> earlier_;
  std::optional<std::int64_t> window_last_;  // earlier_ has what is kept up to here
  std::vector<AttemptSpan> passes_;
  std::int64_t passes_end_ = -1;  // nobody went further: there is nothing to read
  double noise_nats_ = 0;
  std::optional<AttemptComparison> result_;
  std::array<double, kWindow> differences_{};
  std::array<std::int64_t, kWindow> at_step_{};
  std::uint64_t compared_ = 0;  // by this object, and those that it found kept
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_ATTEMPT_COMPARER_H_
