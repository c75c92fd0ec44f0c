// What a row leaves behind once its sums are known, whether its columns are the whole vocabulary or one rank's share of it: loss, gradient, signals.
#ifndef LOSSGAUGE_KERNELS_CPU_ROW_OUTPUTS_INL_H_
#define LOSSGAUGE_KERNELS_CPU_ROW_OUTPUTS_INL_H_

#include <math.h>

#include "kernels/cpu/gradient_inl.h"
#include "kernels/cpu/reduce_inl.h"
#include "kernels/cpu/terms_inl.h"
#include "kernels/host/fingerprint.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

struct Row {
  std::int64_t index;
  std::int64_t position;
  std::int64_t target;  // in the whole vocabulary
  const unsigned char* logits;
  unsigned char* grad;  // null = not wanted
};

// A row over the whole vocabulary, and what of it lies in the columns at hand.
struct RowTotals {
  double sum;     // of exp(z - max)
  double others;  // without the target's
  double target_exponential;
  double nll;
  double log_sum;          // log Z - max
  double log_z;
  double mean_difference;  // of z - max; only with smoothing
  bool finite;             // false: the loss is infinite
  bool correct;            // the target is the lowest column of the largest logit
  float max_abs;           // of these columns
  double share;            // of the row's probability that these columns should hold
};

template <class Element>
class RowOutputs {
 public:
  // `first_column`: where these columns begin in the vocabulary of job.classes columns.
  RowOutputs(const CrossEntropyJob& job, const RowScratch& scratch, std::int64_t first_column, LaunchCounters* counters)
      : job_(job), scratch_(scratch), first_column_(first_column), counters_(counters) {}

  std::int64_t Target(std::int64_t row) const {
    const unsigned char* from = job_.targets + row * job_.target_stride_bytes;
    if (job_.targets_are_int64) {
      std::int64_t value;
      __builtin_memcpy(&value, from, sizeof value);
      return value;
    }
    std::int32_t value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  }

  Row At(std::int64_t row, std::int64_t target) const {
    return {row, job_.positions != nullptr ? job_.positions[row] : job_.position_base + row, target, job_.logits + row * job_.row_stride_bytes,
            job_.grad != nullptr ? job_.grad + row * job_.grad_row_stride_bytes : nullptr};
  }

  bool IsLive(std::int64_t target) const { return target != job_.ignore_index && target >= 0 && target < job_.classes; }

  // A masked row, or one whose target is out of range.
  void LeaveOut(const Row& at) {
    if (at.target != job_.ignore_index) ++counters_->bad_targets;
    if (at.grad != nullptr) __builtin_memset(at.grad, 0, static_cast<std::size_t>(job_.columns * Element::kBytes));
    WriteLoss(at.index, 0.0f, 0.0f);
  }

  void CountUnmasked(const Row& at) {
    ++counters_->unmasked_tokens;
    if (!job_.signals) return;
    counters_->mask_fingerprint += lg_position_hash(at.position, at.target);
    counters_->target_fingerprint += lg_target_hash(at.target);
  }

  void ZeroPadding(const Row& at) const {
    if (at.grad == nullptr || job_.columns <= job_.vocab_size) return;
    __builtin_memset(at.grad + job_.vocab_size * Element::kBytes, 0, static_cast<std::size_t>((job_.columns - job_.vocab_size) * Element::kBytes));
  }

  void CountNonfinite(std::int64_t position) {
    ++counters_->nonfinite_rows;
    if (counters_->first_nonfinite_row < 0 || position < counters_->first_nonfinite_row) {
      counters_->first_nonfinite_row = position < 0 ? 0 : position;
    }
  }

  // Loss and gradient of a row that has none.
  void Poison(const Row& at) const {
    WriteLoss(at.index, __builtin_nanf(""), __builtin_nanf(""));
    if (at.grad == nullptr) return;
    const float value = Scale(at.index) == 0 ? 0.0f : __builtin_nanf("");
    for (std::int64_t j = 0; j < job_.vocab_size; ++j) Element::StoreOne(value, at.grad + j * Element::kBytes);
  }

  // The exponentials of a wanted gradient are in the scratch. shape.target is -1 if the target is in none of these columns.
  template <bool kMapped>
  void Finish(const Row& at, const RowShape& shape, const RowTotals& totals) {
    const double smoothing = job_.label_smoothing;
    const double log_z = totals.log_z;
    double objective = totals.nll;
    if (smoothing != 0) objective = (1.0 - smoothing) * totals.nll + smoothing * (totals.log_sum - totals.mean_difference);
    const double z_loss = job_.z_loss_weight != 0 ? job_.z_loss_weight * log_z * log_z : 0.0;
    if (job_.z_loss_weight != 0) objective += z_loss;
    WriteLoss(at.index, static_cast<float>(objective), static_cast<float>(log_z));
    bool clamped = false;
    if (totals.finite) {
      ++counters_->finite_tokens;
      AddTerm(objective, kLargestSquare, &clamped, &counters_->objective_sum);
      if (job_.signals) CountRow<kMapped>(at, shape, totals, z_loss, &clamped);
    } else {
      CountNonfinite(at.position);
    }
    if (at.grad != nullptr) {
      const GradientRow gradient{totals.sum,
                                 totals.others,
                                 totals.target_exponential,
                                 job_.z_loss_weight != 0 ? 1.0 + 2.0 * job_.z_loss_weight * log_z : 1.0,
                                 smoothing,
                                 smoothing / static_cast<double>(job_.classes),
                                 kMapped && shape.target >= 0 ? static_cast<double>(scratch_.slopes[shape.target]) : 1.0,
                                 0,
                                 0,
                                 false};
      WriteRowGradient<kMapped>(at, shape, gradient, totals, &clamped);
    }
    if (clamped) ++counters_->clamped_rows;
  }

 private:
  void WriteLoss(std::int64_t row, float loss, float log_z) const {
    if (job_.losses != nullptr) job_.losses[row] = loss;
    if (job_.log_z != nullptr) job_.log_z[row] = log_z;
  }

  double Scale(std::int64_t row) const {
    const double upstream = job_.upstream != nullptr ? static_cast<double>(job_.upstream[row * job_.upstream_stride]) : 1.0;
    return upstream * job_.grad_scale;
  }

  template <bool kMapped>
  void CountRow(const Row& at, const RowShape& shape, const RowTotals& totals, double z_loss, bool* clamped) {
    LaunchCounters& counters = *counters_;
    if (shape.target >= 0) ++counters.target_hits;
    if (totals.correct) ++counters.correct_tokens;
    const double nll = totals.nll, log_z = totals.log_z;
    const double kept_nll = nll > kLargestTerm ? kLargestTerm : nll;
    AddTerm(nll, kLargestTerm, clamped, &counters.nll_sum);
    AddTerm(z_loss, kLargestSquare, clamped, &counters.z_loss_sum);
    AddTerm(log_z, kLargestTerm, clamped, &counters.log_z_sum);
    AddTerm(log_z * log_z, kLargestSquare, clamped, &counters.log_z_sq_sum);
    if (job_.token_bytes != nullptr && at.target < job_.token_bytes_size && job_.token_bytes[at.target] != 0) {
      counters.target_bytes += job_.token_bytes[at.target];
      AddTerm(kept_nll, kLargestTerm, clamped, &counters.scored_nll_sum);
    }
    const bool first = counters.finite_tokens == 1;
    const float log_z_float = static_cast<float>(log_z);
    if (first || log_z_float > counters.log_z_max) counters.log_z_max = log_z_float;
    const float nll_float = static_cast<float>(kept_nll);
    if (first || nll_float > counters.worst_row_nll ||
        (nll_float == counters.worst_row_nll && at.position < counters.worst_row_position)) {
      counters.worst_row_nll = nll_float;
      counters.worst_row_position = at.position;
      counters.worst_row_target = at.target;
    }
    if (first || totals.max_abs > counters.max_abs_logit ||
        (totals.max_abs == counters.max_abs_logit && at.position < counters.worst_logit_position)) {
      counters.max_abs_logit = totals.max_abs;
      counters.worst_logit_position = at.position;
      if constexpr (kMapped) {
        const double* z = scratch_.logits;
        counters.worst_logit_column =
            FindMagnitudeFrom(0, job_.vocab_size, totals.max_abs, [z](std::int64_t j) { return static_cast<float>(z[j]); });
      } else {
        counters.worst_logit_column = FindMagnitude<Element>(at.logits, job_.vocab_size, totals.max_abs);
      }
      counters.worst_logit_column += first_column_;
    }
  }

  template <bool kSignals, bool kMapped>
  GradientSignals Write(const Row& at, const RowShape& shape, const GradientRow& gradient) const {
    if constexpr (Element::kStreams) {
      const bool aligned =
          reinterpret_cast<std::uintptr_t>(at.grad) % static_cast<std::uintptr_t>(kLanes * Element::kBytes) == 0;
      if (job_.stream_grad && aligned) {
        return WriteGradient<Element, kSignals, kMapped, true>(gradient, shape, scratch_.exponentials, scratch_.slopes,
                                                               at.grad);
      }
    }
    return WriteGradient<Element, kSignals, kMapped, false>(gradient, shape, scratch_.exponentials, scratch_.slopes, at.grad);
  }

  template <bool kMapped>
  void WriteRowGradient(const Row& at, const RowShape& shape, GradientRow gradient, const RowTotals& totals, bool* clamped) {
    const double scale = Scale(at.index);
    const double factor = scale / job_.denominator;
    const bool ordinary = factor != 0 && __builtin_isfinite(factor);
    const bool signals = job_.signals && totals.finite;
    // Upstream 0 shows nothing of the gradient: its signals are those of the
    // gradient as it would be emitted at upstream 1.
    gradient.factor = ordinary ? factor : 1.0 / job_.denominator;
    gradient.restore = ordinary ? job_.denominator / scale : job_.denominator;
    if (!ordinary && !__builtin_isfinite(gradient.factor)) gradient.factor = 1.0;  // denominator 0
    if (NeedsUnbiasing(gradient)) {
      Unbias(shape.columns, scratch_.exponentials);
      gradient.is_unbiased = true;
    }
    GradientSignals found;
    if (signals) {
      found = Write<true, kMapped>(at, shape, gradient);
    } else if (factor != 0) {
      Write<false, kMapped>(at, shape, gradient);
    }
    if (factor == 0) {
      __builtin_memset(at.grad, 0, static_cast<std::size_t>(shape.columns * Element::kBytes));
    } else if (!ordinary) {
      MultiplyRow<Element>(shape.columns, static_cast<float>(factor), at.grad);
    }
    if (!signals) return;
    AddTerm(found.mass, kLargestMass, clamped, &counters_->probability_mass);
    if (!(found.mass > totals.share - 1e-3 && found.mass < totals.share + 1e-3)) ++counters_->mass_error_rows;
    const bool nonfinite =
        factor != 0 && (!ordinary || (!__builtin_isfinite(found.squares) && HasNonfinite<Element>(shape.columns, at.grad)));
    if (nonfinite) {
      ++counters_->nonfinite_grad_rows;
    } else {
      AddTerm(found.squares, kLargestSquare, clamped, &counters_->logit_grad_sq_sum);
    }
  }

  const CrossEntropyJob& job_;
  const RowScratch& scratch_;
  const std::int64_t first_column_;
  LaunchCounters* counters_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_ROW_OUTPUTS_INL_H_
