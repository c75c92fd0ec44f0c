// The sums behind a step's values, kept exact, so that a rank that comes late can still be added.
#ifndef LOSSGAUGE_SERVER_STATE_STEP_SUMS_H_
#define LOSSGAUGE_SERVER_STATE_STEP_SUMS_H_

#include <cstdint>
#include <optional>
#include <set>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/joined_step.h"
#include "server/state/tensor_group.h"

namespace lossgauge::state {

// The rank owns the loss or a shard of it, and its record has one.
bool OwnsLoss(const RankSample& sample);

class StepSums {
 public:
  // One rank: all its parts. Of a tensor-parallel group the first that is added stands for all, because all report the same sums.
  void Add(const RankSample& sample);
  // The two parts of Add, for who knows which rank stands for its group.
  void AddCounted(const RankSample& sample);
  void AddAny(const RankSample& sample);
  // Fills what follows from the sums; leaves identity, ranks and completeness alone.
  void Summarize(StepSummary* summary) const;

 private:
  struct ExactSum {
    lg_fixed128 value{};
    bool any = false;
    void Add(const lg_fixed128& term);
    std::optional<double> Over(std::uint64_t count) const;
  };
  // Ranks' parts of a gradient, each with entries of its own.
  struct NormOfParts {
    double squares = 0;
    int parts = 0;
    bool lacks_one = false;
    // A part that is not known makes the norm unknown.
    void Add(std::optional<double> square, bool has_tokens);
    std::optional<double> Norm() const;
  };

  StepSummary values_;  // those that are plain sums, maxima and minima already
  ExactSum nll_, objective_, z_loss_, scored_, log_z_;
  std::uint64_t objective_tokens_ = 0, log_z_tokens_ = 0, correct_ = 0;
  NormOfParts logit_grad_, hidden_grad_, head_grad_;
  std::set<TensorGroup> groups_;  // counted; empty without tensor parallelism
};

// Ranks with a loss that the layout promises; the whole world where the layout does not add up.
std::uint64_t LossRanks(const lg_layout& layout);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STEP_SUMS_H_
