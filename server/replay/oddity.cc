#include "server/replay/log_point.h"

namespace lossgauge::replay {

std::string_view OddityName(Oddity oddity) {
  switch (oddity) {
    case Oddity::kUnreadable: return "unreadable";
    case Oddity::kCutOff: return "cut_off";
    case Oddity::kOverlongLine: return "overlong_line";
    case Oddity::kOverlongRecord: return "overlong_record";
    case Oddity::kShortRow: return "short_row";
    case Oddity::kBinary: return "binary";
    case Oddity::kInvalidUtf8: return "invalid_utf8";
    case Oddity::kChecksum: return "checksum";
    case Oddity::kNegativeStep: return "negative_step";
    case Oddity::kAbsurdStep: return "absurd_step";
    case Oddity::kLoneJump: return "lone_jump";
    case Oddity::kRepeatedStep: return "repeated_step";
    case Oddity::kTooManyAttempts: return "too_many_attempts";
    case Oddity::kOtherRank: return "other_rank";
    case Oddity::kOtherSeries: return "other_series";
    case Oddity::kDecimalComma: return "decimal_comma";
    case Oddity::kThousandsComma: return "thousands_comma";
    case Oddity::kMissingAsNan: return "missing_as_nan";
    case Oddity::kWithoutStep: return "without_step";
    case Oddity::kNumbered: return "numbered";
    case Oddity::kUnknownShape: return "unknown_shape";
    case Oddity::kTooManyEvents: return "too_many_events";
    case Oddity::kCount: break;
  }
  return "";
}

std::string_view OddityExplanation(Oddity oddity) {
  switch (oddity) {
    case Oddity::kUnreadable: return "does not parse; skipped";
    case Oddity::kCutOff: return "ends in the middle; what was complete was used";
    case Oddity::kOverlongLine: return "longer than 1 MiB; only its beginning was looked at";
    case Oddity::kOverlongRecord: return "a record larger than 16 MiB; skipped";
    case Oddity::kShortRow: return "fewer cells than the header has names; the missing ones count as empty";
    case Oddity::kBinary: return "holds bytes that no text holds";
    case Oddity::kInvalidUtf8: return "is not valid UTF-8; its numbers were used";
    case Oddity::kChecksum: return "checksum does not match; the record was skipped";
    case Oddity::kNegativeStep: return "a step below 0; the point was skipped";
    case Oddity::kAbsurdStep: return "no step: not whole, or beyond 2^53; the point was skipped";
    case Oddity::kLoneJump: return "a step far beyond its neighbours, and the log did not go on from there; the point was skipped";
    case Oddity::kRepeatedStep: return "a second point of the same step; the first stands";
    case Oddity::kTooManyAttempts: return "would begin one attempt more than the 1,024 that are read; the point was skipped";
    case Oddity::kOtherRank: return "another rank's line for a step that has passed; skipped";
    case Oddity::kOtherSeries: return "another loss beside the one that is read; skipped";
    case Oddity::kDecimalComma: return "a comma as decimal point; read as one";
    case Oddity::kThousandsComma: return "commas between thousands; left out";
    case Oddity::kMissingAsNan: return "\"nan\" where a value is missing; read as missing";
    case Oddity::kWithoutStep: return "a loss without a step in a log whose points have steps; skipped";
    case Oddity::kNumbered: return "no point has a step; they are numbered from 0";
    case Oddity::kUnknownShape: return "well-formed, but holds no training log that is known here";
    case Oddity::kTooManyEvents: return "an event beyond the 64 MiB of events that are held; skipped";
    case Oddity::kCount: break;
  }
  return "";
}

}  // namespace lossgauge::replay
