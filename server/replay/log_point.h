// What a training log says, whatever wrote it: points, evaluations and checkpoints, in the order of the file. What a line does not say is
// absent, never 0.
#ifndef LOSSGAUGE_SERVER_REPLAY_LOG_POINT_H_
#define LOSSGAUGE_SERVER_REPLAY_LOG_POINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lossgauge::replay {

inline constexpr std::int64_t kLargestStep = std::int64_t{1} << 53;  // a double holds it and every step below
inline constexpr std::uint32_t kMaxAttempts = 1024;  // of one log or replay; no job is started so often

struct LogPoint {
  std::uint64_t line = 0;   // from 1; of an event file: number of the record
  std::uint64_t index = 0;  // among the points of the file, from 0
  std::uint32_t attempt = 1;  // from 1; rises where the log goes back in its steps
  std::string attempt_name;   // where the log names it, else empty
  std::int64_t step = 0;
  // Steps that the values stand for: means over so many, ending here, or the one of them that was logged. 1 = every step is logged.
  std::int64_t interval_steps = 1;
  std::optional<double> loss;  // nats a token. NaN or infinite if the log says so; absent if it says nothing (a skipped iteration)
  std::optional<double> grad_norm;  // likewise
  std::optional<double> learning_rate;
  std::optional<double> step_seconds;      // of one step
  std::optional<double> max_abs_logit;
  std::optional<double> log_z_mean_nats;
  std::optional<double> log_z_max_nats;
  std::optional<double> reported_loss_nats;  // over which steps, how rounded and with what added is not known
  std::optional<double> objective_nats;      // what is trained on: the loss with smoothing and z-loss
  std::optional<double> z_loss_nats;
  std::optional<std::uint64_t> tokens;
  std::optional<std::uint64_t> unmasked_tokens;
  std::optional<std::uint64_t> finite_tokens;
  std::optional<std::uint64_t> nonfinite_rows;
  std::optional<std::uint64_t> nonfinite_grad_rows;
  std::optional<std::uint64_t> target_fingerprint;
  std::optional<std::uint64_t> mask_fingerprint;
  std::optional<std::uint64_t> skipped_iterations;  // of the interval: no update was made, as with loss scaling
  std::optional<std::uint64_t> nan_iterations;      // of the interval: their loss was not finite, and is not in the mean
};

struct LogEvaluation {
  std::uint64_t line = 0;
  std::optional<std::int64_t> step;  // absent: that of the last point
  double loss_nats = 0;
};

struct LogCheckpoint {
  std::uint64_t line = 0;
  std::int64_t step = 0;
  std::string path;  // may be empty
};

// What only our own bundles tell.
struct LogJobEvent {
  // Resume comes before the first point of the attempt that it begins, end after the last one of the attempt that ended.
  enum Kind { kResume, kPhaseBegin, kPhaseEnd, kEnd };
  std::uint64_t line = 0;
  Kind kind = kEnd;
  std::int64_t step = -1;   // resume: the job went on after this one
  std::uint64_t phase = 0;  // LG_PHASE_*
  bool failed = false;      // end: as the job itself said
  std::string text;         // resume: the checkpoint's path; end: why
};

// After which step an attempt that begins with `point` went on, as its job told (`told`), or else as its first step says; absent at the very beginning.
inline std::optional<LogJobEvent> ResumeBefore(const LogPoint& point, const std::optional<LogJobEvent>& told) {
  const std::int64_t before = point.step - point.interval_steps;
  if (told && told->step >= before && told->step < point.step) return told;
  if (before <= 0) return std::nullopt;
  LogJobEvent resume;
  resume.kind = LogJobEvent::kResume;
  resume.step = before;
  return resume;
}

class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void OnPoint(const LogPoint& point) = 0;
  virtual void OnEvaluation(const LogEvaluation&) {}
  virtual void OnCheckpoint(const LogCheckpoint&) {}
  virtual void OnJobEvent(const LogJobEvent&) {}
  // False: whatever else comes is of no use, so reading may end.
  virtual bool WantsMore() const { return true; }
};

// What was found that a log should not hold. Nothing of it stops the reading.
enum class Oddity {
  kUnreadable,      // a line, row, object or record that does not parse
  kCutOff,          // ends in the middle; its complete values were used
  kOverlongLine,    // longer than 1 MiB; its beginning was looked at
  kOverlongRecord,  // of an event file, larger than 16 MiB
  kShortRow,        // fewer cells than names in the header
  kBinary,          // bytes that no text holds
  kInvalidUtf8,
  kChecksum,        // of an event file
  kNegativeStep,
  kAbsurdStep,      // beyond 2^53
  kLoneJump,        // far beyond its neighbours, and the log did not go on from there
  kRepeatedStep,    // a second point of a step: the first stands
  kTooManyAttempts,  // a point that would begin one more than kMaxAttempts
  kOtherRank,       // another rank's line for a step that is behind
  kOtherSeries,     // a second loss beside the one that is read
  kDecimalComma,
  kThousandsComma,
  kMissingAsNan,    // "nan" where the log means that there is no value
  kWithoutStep,     // a loss without a step, in a log whose points have steps
  kNumbered,        // no point has a step: they were numbered
  kUnknownShape,    // JSON or a table without anything that is known here
  kTooManyEvents,   // of a bundle: beyond what is held in memory
  kCount,
};
std::string_view OddityName(Oddity oddity);         // "unreadable", "cut_off", ...
std::string_view OddityExplanation(Oddity oddity);  // for a person

struct OddityCount {
  std::uint64_t count = 0;
  std::uint64_t first_line = 0;
  std::uint64_t last_line = 0;
};

inline constexpr std::string_view kFormatText = "text";  // until its lines' grammar is known

// What reading a file came to.
struct LogReport {
  std::string read_error;  // why reading ended before the end of the file; empty if it did not
  std::string format;     // "hf_trainer_state", "megatron", ...; "unknown" if nothing in it was understood
  std::string loss_name;  // as the log calls it
  std::string encoding;   // "utf-8", "utf-16le", "utf-16be", "binary"
  std::uint64_t bytes = 0;
  std::uint64_t lines = 0;
  std::uint64_t points = 0;
  std::uint64_t evaluations = 0;
  std::uint64_t checkpoints = 0;
  std::uint64_t skipped_iterations = 0;
  std::uint32_t attempts = 0;
  std::vector<std::string> notes;  // sentences that whoever reads the verdicts must know
  std::array<OddityCount, static_cast<std::size_t>(Oddity::kCount)> oddities{};

  void Count(Oddity oddity, std::uint64_t line) {
    OddityCount& entry = oddities[static_cast<std::size_t>(oddity)];
    if (entry.count++ == 0) entry.first_line = line;
    entry.last_line = line;
  }
  std::uint64_t CountOf(Oddity oddity) const { return oddities[static_cast<std::size_t>(oddity)].count; }
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_LOG_POINT_H_
