#include "client/cpp/examples/train_text/faults.h"

#include <csignal>

#include <algorithm>
#include <cmath>
#include <limits>

#include "client/cpp/examples/train_text/random.h"

namespace lossgauge::train_text {
namespace {

constexpr std::uint64_t kGarbageStream = 4;
constexpr std::int32_t kPaddingToken = 0;
constexpr double kDivergenceFactor = 100;
constexpr float kHeadInflation = 2.5f;
constexpr std::int64_t kDelayMs = 400;
constexpr double kLossScale = 1024;

struct Entry {
  Fault fault;
  const char* name;
  std::int64_t steps;  // how long it lasts by itself
  const char* help;
};

constexpr std::int64_t kForGood = std::numeric_limits<std::int64_t>::max();
constexpr Entry kEntries[] = {
    {Fault::kNone, "none", 0, "nothing"},
    {Fault::kSpike, "spike", 4, "garbage in a quarter of the sequences, the head inflated once: max|z| and loss jump, both come back by themselves"},
    {Fault::kDivergence, "divergence", kForGood, "learning rate times 100 without clipping: the loss rises and stays up"},
    {Fault::kNan, "nan", 1, "a NaN weight in the head: every loss is NaN from then on"},
    {Fault::kNanOnce, "nan_once", 1, "one row of one batch is NaN; the update is skipped"},
    {Fault::kMeanOfMeans, "mean_of_means", kForGood, "each micro-batch and rank divides by its own count"},
    {Fault::kWrongDenominator, "wrong_denominator", kForGood, "divides by all positions, masked ones included"},
    {Fault::kLocalReport, "local_report", kForGood, "each rank logs its own loss as if it were that of all ranks"},
    {Fault::kStopRank, "stop_rank", kForGood, "a rank stops entering steps; the others wait for it until --barrier_timeout_s"},
    {Fault::kKill, "kill", 1, "a rank gets SIGKILL"},
    {Fault::kFreeze, "freeze", 1, "a rank gets SIGSTOP"},
    {Fault::kEvalPause, "eval_pause", 1, "an evaluation that takes --fault_seconds"},
    {Fault::kRepeatBatch, "repeat_batch", 20, "the loader hands out the same batch"},
    {Fault::kBlip, "blip", 1, "garbage in a quarter of the sequences of one batch: one step stands out"},
    {Fault::kNoise, "noise", kForGood, "garbage in one of 16 sequences: the loss settles higher"},
    {Fault::kPadding, "padding", kForGood, "every label is the padding token: the loss jumps, then falls to nothing"},
    {Fault::kBadShard, "bad_shard", kForGood, "one rank reads garbage: its loss lies apart"},
    {Fault::kSlowRank, "slow_rank", kForGood, "one rank takes 400 ms longer for each step"},
    {Fault::kMute, "mute", kForGood, "one rank trains on and no longer publishes"},
    {Fault::kUnscaled, "unscaled", kForGood, "gradients are clipped without being divided by a loss scale of 1024 first: their norm jumps, the loss does not"},
    {Fault::kZLossSign, "z_loss_sign", kForGood, "the z-loss is subtracted: log Z drifts away, the loss does not show it"},
};

const Entry& EntryOf(Fault fault) {
  return *std::find_if(std::begin(kEntries), std::end(kEntries), [&](const Entry& entry) { return entry.fault == fault; });
}

}  // namespace

std::vector<std::string> FaultNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

std::string FaultHelp() {
  std::string text;
  for (const Entry& entry : kEntries) {
    std::string left = std::string("  ") + entry.name;
    left.resize(22, ' ');
    text += left + entry.help + "\n";
  }
  return text;
}

Fault FaultFromName(const std::string& name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry.fault;
  }
  return Fault::kNone;
}

FaultPlan::FaultPlan(const std::vector<PlannedFault>& faults, std::uint64_t seed, int rank, int victim) : seed_(seed), rank_(rank), victim_(victim) {
  for (const PlannedFault& planned : faults) {
    const std::int64_t length = planned.steps > 0 ? planned.steps : EntryOf(planned.fault).steps;
    spans_.push_back({planned.fault, planned.first_step, length >= kForGood - planned.first_step ? kForGood : planned.first_step + length});
  }
}

bool FaultPlan::Active(Fault fault, std::int64_t step) const {
  return std::any_of(spans_.begin(), spans_.end(), [&](const Span& span) { return span.fault == fault && step >= span.first && step < span.last; });
}

bool FaultPlan::Begins(Fault fault, std::int64_t step) const {
  return std::any_of(spans_.begin(), spans_.end(), [&](const Span& span) { return span.fault == fault && step == span.first; });
}

std::int64_t FaultPlan::BatchStep(std::int64_t step) const {
  for (const Span& span : spans_) {
    if (span.fault == Fault::kRepeatBatch && step >= span.first && step < span.last) return span.first;
  }
  return step;
}

std::int64_t FaultPlan::GarbageEvery(std::int64_t step) const {
  if (Active(Fault::kBadShard, step) && HitsThisRank()) return 1;
  if (Active(Fault::kSpike, step) || Active(Fault::kBlip, step)) return 4;
  return Active(Fault::kNoise, step) ? 16 : 0;
}

void FaultPlan::CorruptBatch(std::int64_t step, std::int64_t vocab_size, const BatchShape& shape, Batch* batch) const {
  if (Active(Fault::kPadding, step)) {
    for (std::int32_t& target : batch->targets) target = target == kIgnoreIndex ? target : kPaddingToken;
  }
  const std::int64_t every = GarbageEvery(step);
  if (every == 0) return;
  // Masks and document boundaries stay as they are: only what the text says is garbage.
  const auto garbage = [&](std::int64_t position) {
    const std::uint64_t bits = RandomBits(seed_, kGarbageStream, static_cast<std::uint64_t>(step * shape.sequences * shape.length + position));
    const auto token = static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(vocab_size - 1));
    return token < kEndToken ? token : token + 1;  // any token but the end
  };
  for (std::int64_t row = 0; row < batch->rows(); ++row) {
    const std::int64_t position = batch->first_position + row;
    if (position / shape.length % every != 0) continue;
    std::int32_t& target = batch->targets[static_cast<std::size_t>(row)];
    if (target != kIgnoreIndex) target = garbage(position);
    for (std::int64_t i = 0; i < shape.context_length; ++i) {
      std::int32_t& token = batch->context[static_cast<std::size_t>(row * shape.context_length + i)];
      if (token != kEndToken) token = garbage(position - shape.context_length + i);
    }
  }
}

void FaultPlan::CorruptModel(std::int64_t step, Model* model) const {
  const ModelShape& shape = model->shape();
  float* head = model->parameters().data() + shape.head_offset();
  if (Begins(Fault::kSpike, step)) {
    for (std::int64_t i = 0; i < shape.hidden * shape.columns(); ++i) head[i] *= kHeadInflation;
  }
  if (Begins(Fault::kNan, step)) head['e'] = std::numeric_limits<float>::quiet_NaN();
}

bool FaultPlan::CorruptHidden(std::int64_t step, const ModelShape& shape, const Batch& batch, std::vector<float>* hidden) const {
  if (!Active(Fault::kNanOnce, step) || !HitsThisRank()) return false;
  const auto unmasked = std::find_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t target) { return target != kIgnoreIndex; });
  if (unmasked == batch.targets.end()) return false;
  (*hidden)[static_cast<std::size_t>((unmasked - batch.targets.begin()) * shape.hidden)] = std::numeric_limits<float>::quiet_NaN();
  return true;
}

double FaultPlan::LearningRateFactor(std::int64_t step) const { return Active(Fault::kDivergence, step) ? kDivergenceFactor : 1; }

double FaultPlan::GradientFactor(std::int64_t step) const { return Active(Fault::kUnscaled, step) ? kLossScale : 1; }

std::int64_t FaultPlan::DelayMs(std::int64_t step) const { return Active(Fault::kSlowRank, step) && HitsThisRank() ? kDelayMs : 0; }

void FaultPlan::Signal(std::int64_t step) const {
  if (!HitsThisRank()) return;
  if (Begins(Fault::kKill, step)) std::raise(SIGKILL);
  if (Begins(Fault::kFreeze, step)) std::raise(SIGSTOP);
}

void SubtractZLossGradient(const lg_cross_entropy_args& loss, std::span<const float> logits, std::int64_t columns, float* gradients) {
  const std::int32_t* targets = static_cast<const std::int32_t*>(loss.targets);
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    if (targets[row] == loss.ignore_index) continue;
    const double log_z = loss.log_z[row];
    const double twice = 2 * 2 * loss.z_loss_weight * log_z / loss.denominator;  // once to undo what was added, once to subtract it
    for (std::int64_t i = row * columns; i < row * columns + loss.vocab_size; ++i) {
      gradients[i] -= static_cast<float>(twice * std::exp(logits[static_cast<std::size_t>(i)] - log_z));
    }
  }
}

}  // namespace lossgauge::train_text
