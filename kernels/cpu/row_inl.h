// One launch's share of rows: what each row is (masked, bad target, finite or
// not), its loss, its gradient, its signals.
//
// A row's bits depend on that row and on the call's options alone, never on
// threads, alignment or what else is asked for. Sums over rows are integers, so
// their order does not show.
#ifndef LOSSGAUGE_KERNELS_CPU_ROW_INL_H_
#define LOSSGAUGE_KERNELS_CPU_ROW_INL_H_

#include <math.h>

#include "kernels/cpu/gradient_inl.h"
#include "kernels/cpu/reduce_inl.h"
#include "kernels/cpu/terms_inl.h"
#include "kernels/host/fingerprint.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class Element>
class RowWorker {
 public:
  RowWorker(const CrossEntropyJob& job, const RowScratch& scratch, LaunchCounters* counters)
      : job_(job), scratch_(scratch), counters_(counters), plain_(IsPlain(job)) {}

  void Run(std::int64_t row) {
    const std::int64_t target = Target(row);
    unsigned char* grad = job_.grad != nullptr ? job_.grad + row * job_.grad_row_stride_bytes : nullptr;
    ++counters_->tokens;
    const bool masked = target == job_.ignore_index;
    if (masked || target < 0 || target >= job_.vocab_size) {
      if (!masked) ++counters_->bad_targets;
      if (grad != nullptr) __builtin_memset(grad, 0, static_cast<std::size_t>(job_.columns * Element::kBytes));
      WriteLoss(row, 0.0f, 0.0f);
      return;
    }
    const std::int64_t position = job_.positions != nullptr ? job_.positions[row] : job_.position_base + row;
    ++counters_->unmasked_tokens;
    if (job_.signals) {
      counters_->mask_fingerprint += lg_position_hash(position, target);
      counters_->target_fingerprint += lg_target_hash(target);
    }
    if (grad != nullptr && job_.columns > job_.vocab_size) {
      __builtin_memset(grad + job_.vocab_size * Element::kBytes, 0,
                       static_cast<std::size_t>((job_.columns - job_.vocab_size) * Element::kBytes));
    }
    const unsigned char* logits = job_.logits + row * job_.row_stride_bytes;
    const RowShape shape{job_.vocab_size, target};
    const RowExtremes extremes = plain_ ? FindExtremes<Element>(logits, shape) : MapRow<Element>(job_, logits, shape, scratch_);
    const Row at{row, position, target, logits, grad};
    if (extremes.is_nan) {
      Poison(at);
    } else if (plain_) {
      Finish(at, shape, extremes, DirectReader<Element>(logits, static_cast<float>(extremes.max())));
    } else {
      Finish(at, shape, extremes, MappedReader(scratch_, extremes.max()));
    }
  }

 private:
  struct Row {
    std::int64_t index;
    std::int64_t position;
    std::int64_t target;
    const unsigned char* logits;
    unsigned char* grad;
  };

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

  void WriteLoss(std::int64_t row, float loss, float log_z) const {
    if (job_.losses != nullptr) job_.losses[row] = loss;
    if (job_.log_z != nullptr) job_.log_z[row] = log_z;
  }

  double Scale(std::int64_t row) const {
    const double upstream = job_.upstream != nullptr ? static_cast<double>(job_.upstream[row * job_.upstream_stride]) : 1.0;
    return upstream * job_.grad_scale;
  }

  void CountNonfinite(std::int64_t position) {
    ++counters_->nonfinite_rows;
    if (counters_->first_nonfinite_row < 0 || position < counters_->first_nonfinite_row) {
      counters_->first_nonfinite_row = position < 0 ? 0 : position;
    }
  }

  // A row with a NaN, a +inf, or only -inf.
  void Poison(const Row& at) {
    CountNonfinite(at.position);
    WriteLoss(at.index, __builtin_nanf(""), __builtin_nanf(""));
    if (at.grad == nullptr) return;
    const float value = Scale(at.index) == 0 ? 0.0f : __builtin_nanf("");
    for (std::int64_t j = 0; j < job_.vocab_size; ++j) Element::StoreOne(value, at.grad + j * Element::kBytes);
  }

  template <class Reader>
  void Finish(const Row& at, const RowShape& shape, const RowExtremes& extremes, const Reader& reader) {
    const double max = extremes.max();
    const double lead = extremes.target - extremes.others();
    const double smoothing = job_.label_smoothing;
    RowSums sums;
    if (at.grad != nullptr) {
      sums = smoothing != 0 ? SumRow<true, true>(reader, shape, scratch_.exponentials)
                            : SumRow<false, true>(reader, shape, scratch_.exponentials);
    } else {
      sums = smoothing != 0 ? SumRow<true, false>(reader, shape, nullptr) : SumRow<false, false>(reader, shape, nullptr);
    }
    if (lead >= 16.0) sums.exponentials = SumPrecisely(reader, shape);
    const double target_exponential = exp(extremes.target - max);
    const double sum = sums.exponentials + target_exponential;
    const double log_sum = lead >= 0 ? log1p(sums.exponentials) : log(sum);
    const double nll = (max - extremes.target) + log_sum;
    const double log_z = max + log_sum;
    double objective = nll;
    if (smoothing != 0) {
      const double mean = (sums.differences + (extremes.target - max)) / static_cast<double>(shape.columns);
      objective = (1.0 - smoothing) * nll + smoothing * (log_sum - mean);
    }
    const double z_loss = job_.z_loss_weight != 0 ? job_.z_loss_weight * log_z * log_z : 0.0;
    if (job_.z_loss_weight != 0) objective += z_loss;
    // exp(-inf - max) is 0, so a -inf target has nll +inf; a -inf column makes
    // the mean -inf and the objective +inf.
    const bool finite = extremes.target != -HUGE_VAL && !(smoothing != 0 && extremes.has_minus_infinity);
    WriteLoss(at.index, static_cast<float>(objective), static_cast<float>(log_z));
    bool clamped = false;
    if (finite) {
      ++counters_->finite_tokens;
      AddTerm(objective, kLargestSquare, &clamped, &counters_->objective_sum);
      if (job_.signals) CountRow(at, extremes, reader, nll, log_z, z_loss, &clamped);
    } else {
      CountNonfinite(at.position);
    }
    if (at.grad != nullptr) {
      const GradientRow gradient{sum,
                                 sums.exponentials,
                                 target_exponential,
                                 job_.z_loss_weight != 0 ? 1.0 + 2.0 * job_.z_loss_weight * log_z : 1.0,
                                 smoothing,
                                 Reader::kMapped ? static_cast<double>(scratch_.slopes[at.target]) : 1.0,
                                 0,
                                 0,
                                 false};
      WriteRowGradient<Reader::kMapped>(at, shape, gradient, finite, &clamped);
    }
    if (clamped) ++counters_->clamped_rows;
  }

  template <class Reader>
  void CountRow(const Row& at, const RowExtremes& extremes, const Reader&, double nll, double log_z, double z_loss,
                bool* clamped) {
    LaunchCounters& counters = *counters_;
    ++counters.target_hits;
    // As fp32: a soft cap lets far logits differ in their last bits of double
    // alone.
    const auto target_z = static_cast<float>(extremes.target);
    if (target_z > static_cast<float>(extremes.before) && target_z >= static_cast<float>(extremes.after))
      ++counters.correct_tokens;
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
    if (first || extremes.max_abs > counters.max_abs_logit ||
        (extremes.max_abs == counters.max_abs_logit && at.position < counters.worst_logit_position)) {
      counters.max_abs_logit = extremes.max_abs;
      counters.worst_logit_position = at.position;
      if constexpr (Reader::kMapped) {
        const double* z = scratch_.logits;
        counters.worst_logit_column =
            FindMagnitudeFrom(0, job_.vocab_size, extremes.max_abs, [z](std::int64_t j) { return static_cast<float>(z[j]); });
      } else {
        counters.worst_logit_column = FindMagnitude<Element>(at.logits, job_.vocab_size, extremes.max_abs);
      }
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
  void WriteRowGradient(const Row& at, const RowShape& shape, GradientRow gradient, bool finite, bool* clamped) {
    const double scale = Scale(at.index);
    const double factor = scale / job_.denominator;
    const bool ordinary = factor != 0 && __builtin_isfinite(factor);
    const bool signals = job_.signals && finite;
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
    if (!(found.mass > 1.0 - 1e-3 && found.mass < 1.0 + 1e-3)) ++counters_->mass_error_rows;
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
  LaunchCounters* counters_;
  const bool plain_;
};

template <class Element>
HWY_NOINLINE void RunRows(const CrossEntropyJob& job, std::int64_t begin, std::int64_t end, const RowScratch& scratch,
                          LaunchCounters* counters) {
  RowWorker<Element> worker(job, scratch, counters);
  for (std::int64_t row = begin; row < end; ++row) worker.Run(row);
  // Streamed stores are not ordered by the thread's end.
  if (job.stream_grad) hwy::FlushStream();
}

void CrossEntropyRows(const CrossEntropyJob& job, std::int64_t begin, std::int64_t end, const RowScratch& scratch,
                      LaunchCounters* counters) {
  switch (job.logits_dtype) {
    case LG_DTYPE_FP32:
      return RunRows<Fp32>(job, begin, end, scratch, counters);
    case LG_DTYPE_BF16:
      return RunRows<Bf16>(job, begin, end, scratch, counters);
    default:
      return RunRows<Fp16>(job, begin, end, scratch, counters);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_ROW_INL_H_
