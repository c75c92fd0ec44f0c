// What goes wrong on purpose. Each fault is a mechanism that breaks real jobs; no number that the gauge sees is ever edited.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_FAULTS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_FAULTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/cpp/examples/train_text/batches.h"
#include "client/cpp/examples/train_text/model.h"
#include "lossgauge/lossgauge.h"

namespace lossgauge::train_text {

enum class Fault {
  kNone,
  kSpike,             // garbage bytes in part of the batch and an inflated head; recovers by itself
  kDivergence,        // learning-rate blow-up with clipping off
  kNan,               // one NaN weight in the head
  kNanOnce,           // one poisoned row in one batch; its update is skipped
  kMeanOfMeans,       // each micro-batch and rank divides by its own count
  kWrongDenominator,  // divides by positions, masked ones included
  kLocalReport,       // each rank logs its own loss as if it were that of all
  kStopRank,          // a rank stops entering steps
  kKill,              // SIGKILL
  kFreeze,            // SIGSTOP
  kEvalPause,         // a long evaluation
  kRepeatBatch,       // the loader hands out the same batch again and again
  kBlip,              // garbage bytes in part of one batch
  kNoise,             // garbage bytes in a few sequences of every batch: another mixture of data
  kPadding,           // the loader labels every position with the padding token
  kBadShard,          // one rank reads garbage
  kSlowRank,          // one rank takes longer
  kMute,              // one rank trains on and no longer publishes
  kUnscaled,          // gradients are not divided by the loss scale
  kZLossSign          // the z-loss pushes log Z away instead of pulling it back
};

std::vector<std::string> FaultNames();  // as --fault takes them, "none" first
std::string FaultHelp();
Fault FaultFromName(const std::string& name);

struct PlannedFault {
  Fault fault = Fault::kNone;
  std::int64_t first_step = 0;
  std::int64_t steps = 0;  // 0 = the fault's own length
};

// What is to go wrong in this run, as one rank sees it.
class FaultPlan {
 public:
  // `rank` is the one that asks, `victim` the one that is hit where only one is.
  FaultPlan(const std::vector<PlannedFault>& faults, std::uint64_t seed, int rank, int victim);

  bool Active(Fault fault, std::int64_t step) const;
  bool Begins(Fault fault, std::int64_t step) const;
  bool HitsThisRank() const { return rank_ == victim_; }

  // The step whose batch the loader hands out at `step`.
  std::int64_t BatchStep(std::int64_t step) const;
  void CorruptBatch(std::int64_t step, std::int64_t vocab_size, const BatchShape& shape, Batch* batch) const;
  // At the beginning of a step, alike on every rank.
  void CorruptModel(std::int64_t step, Model* model) const;
  // Between hidden layer and head. True if something was changed.
  bool CorruptHidden(std::int64_t step, const ModelShape& shape, const Batch& batch, std::vector<float>* hidden) const;
  double LearningRateFactor(std::int64_t step) const;
  double GradientFactor(std::int64_t step) const;
  // How much longer the step takes this rank.
  std::int64_t DelayMs(std::int64_t step) const;
  bool Mute(std::int64_t step) const { return Active(Fault::kMute, step) && HitsThisRank(); }
  bool ClippingOff(std::int64_t step) const { return Active(Fault::kDivergence, step); }
  // kKill and kFreeze happen here, to this process.
  void Signal(std::int64_t step) const;

 private:
  // One sequence in so many is garbage; 0 = none.
  std::int64_t GarbageEvery(std::int64_t step) const;

  struct Span {
    Fault fault;
    std::int64_t first, last;  // last excluded
  };
  std::vector<Span> spans_;
  std::uint64_t seed_;
  int rank_, victim_;
};

// kZLossSign: makes of the gradient that a call with `loss` gave at `logits` that of a loss from which the z-loss was taken where it should be added.
// Both are [loss.rows, columns]; targets are int32, loss.denominator is not 0.
void SubtractZLossGradient(const lg_cross_entropy_args& loss, std::span<const float> logits, std::int64_t columns, float* gradients);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_FAULTS_H_
