// What the names in other people's logs mean. One table of names, so that all formats understand the same ones.
#ifndef LOSSGAUGE_SERVER_REPLAY_FIELD_NAMES_H_
#define LOSSGAUGE_SERVER_REPLAY_FIELD_NAMES_H_

#include <string>
#include <string_view>

namespace lossgauge::replay {

enum class Meaning {
  kNone,
  kStep,
  kEpoch,
  kTrainingLoss,
  kEvaluationLoss,
  kGradNorm,
  kLearningRate,
  kStepSeconds,
  kTokens,
  kUnmaskedTokens,
  kFiniteTokens,
  kNonfiniteRows,
  kNonfiniteGradRows,
  kMaxAbsLogit,
  kLogZMean,
  kLogZMax,
  kReportedLoss,
  kObjective,
  kZLoss,
  kTargetFingerprint,
  kMaskFingerprint,
  kSkippedIterations,
  kNanIterations,
};

struct FieldName {
  Meaning meaning = Meaning::kNone;
  // Among names of one meaning the lowest is the best. Losses: 0 to 99 are names of the loss itself, 100 of some loss, 200 of a side term.
  int rank = 0;
};

inline constexpr int kSomeLoss = 100;
inline constexpr int kSideLoss = 200;

// Whether it is counted, so that a comma in it parts thousands and is no decimal point.
bool IsCount(Meaning meaning);

// Lower case, words joined by "_": "lm loss", "lm-loss", "lm/loss" and "lmLoss" are one name. A leading underscore stays.
std::string NormalName(std::string_view name);

// `name` is normal.
FieldName LookUpName(std::string_view name);

// "ms" for "elapsed time per iteration (ms)" and "dt_ms"; else empty.
std::string_view UnitInName(std::string_view name);

// A word that names a part of the data that is not trained on: "val", "eval", "test", ...
bool IsEvaluationWord(std::string_view word);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_FIELD_NAMES_H_
