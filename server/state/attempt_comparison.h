// A job that was resumed goes over steps that an earlier attempt has been through. Did it do the same?
//
// - Loss: "equal" to the last bit; "within_noise"; or "diverged" from a step on, which a resume from the right state does not do by itself: look for
//   a checkpoint that lacks something (optimizer, random state) or holds damage. Where both passes saw the same targets, the noise of batches cancels, and
//   half a deviation of the loss from step to step, kept over eight steps, is a divergence; where they did not, it takes two deviations over sixteen.
//   A step that is not finite where it was finite before is one at once.
// - Data, by the fingerprints of targets: "same"; "shifted" by a number of steps (a loader that skipped or repeated batches); "different"; "unknown"
//   where the job gives no fingerprints.
// - What could not be compared, because it is no longer kept step by step or has no loss, is counted and named.
//
// An observation, not a condition: a job may have been resumed with another learning rate or other data on purpose.
#ifndef LOSSGAUGE_SERVER_STATE_ATTEMPT_COMPARISON_H_
#define LOSSGAUGE_SERVER_STATE_ATTEMPT_COMPARISON_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/state/joined_step.h"

namespace lossgauge::state {

enum class LossMatch : std::uint8_t { kEqual, kWithinNoise, kDiverged, kUnknown };  // stored by number
enum class DataMatch : std::uint8_t { kUnknown, kSame, kShifted, kDifferent };

struct AttemptComparison {
  std::string with_attempt;  // the one whose step was compared last
  std::int64_t first_step = 0;  // of those compared
  std::int64_t last_step = -1;  // below first_step: none
  std::uint64_t steps = 0;      // that both have a finite loss for
  LossMatch loss = LossMatch::kUnknown;
  std::optional<std::int64_t> first_unequal_step;
  std::optional<std::int64_t> diverged_step;   // where the stretch that told begins
  std::optional<std::int64_t> nonfinite_step;  // the first that is not finite and was before
  double mean_difference_nats = 0;            // this attempt less the earlier one
  double largest_difference_nats = 0;         // signed
  std::int64_t largest_difference_step = 0;
  double noise_nats = 0;  // of the earlier pass from step to step, one deviation
  DataMatch data = DataMatch::kUnknown;
  std::optional<std::int64_t> first_different_data_step;
  std::int64_t data_offset_steps = 0;  // kShifted: step s had the targets of step s + this before
  // Of those that an earlier attempt went through, without two losses to compare.
  std::uint64_t not_compared = 0;
  std::optional<std::int64_t> first_not_compared_step;
  std::optional<std::int64_t> last_not_compared_step;
};

std::string_view LossMatchName(LossMatch match);
std::string_view DataMatchName(DataMatch match);
// "steps 100 to 163 equal those of attempt '1'; the data loader resumed where it should".
std::string Describe(const AttemptComparison& comparison);

// What an attempt went through.
struct AttemptSpan {
  std::string attempt;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_ATTEMPT_COMPARISON_H_
