// One launch's share of rows: what each row is (masked, bad target, finite or
// not), and the sums that its loss is made of.
//
// A row's bits depend on that row and on the call's options alone, never on
// threads, alignment or what else is asked for. Sums over rows are integers, so
// their order does not show.
#ifndef LOSSGAUGE_KERNELS_CPU_ROW_INL_H_
#define LOSSGAUGE_KERNELS_CPU_ROW_INL_H_

#include <math.h>

#include "kernels/cpu/row_outputs_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

// Sums of the columns at hand, the exponentials themselves to `keep` if it is not null.
template <class Reader>
RowSums SumColumns(const Reader& reader, const RowShape& shape, const RowExtremes& extremes, bool smoothing, float* keep) {
  RowSums sums;
  if (keep != nullptr) {
    sums = smoothing ? SumRow<true, true>(reader, shape, keep) : SumRow<false, true>(reader, shape, keep);
  } else {
    sums = smoothing ? SumRow<true, false>(reader, shape, nullptr) : SumRow<false, false>(reader, shape, nullptr);
  }
  if (extremes.lead() >= 16.0) sums.exponentials = SumPrecisely(reader, shape);
  return sums;
}

template <class Element>
class RowWorker {
 public:
  RowWorker(const CrossEntropyJob& job, const RowScratch& scratch, LaunchCounters* counters)
      : job_(job), scratch_(scratch), counters_(counters), outputs_(job, scratch, 0, counters), plain_(IsPlain(job)) {}

  void Run(std::int64_t row) {
    const Row at = outputs_.At(row, outputs_.Target(row));
    ++counters_->tokens;
    if (!outputs_.IsLive(at.target)) return outputs_.LeaveOut(at);
    outputs_.CountUnmasked(at);
    outputs_.ZeroPadding(at);
    const RowShape shape{job_.vocab_size, at.target};
    const RowExtremes extremes = plain_ ? FindExtremes<Element>(at.logits, shape) : MapRow<Element>(job_, at.logits, shape, scratch_);
    if (extremes.has_nan || extremes.nothing_finite) {
      outputs_.CountNonfinite(at.position);
      outputs_.Poison(at);
    } else if (plain_) {
      Finish(at, shape, extremes, DirectReader<Element>(at.logits, static_cast<float>(extremes.max())));
    } else {
      Finish(at, shape, extremes, MappedReader(scratch_, extremes.max()));
    }
  }

 private:
  template <class Reader>
  void Finish(const Row& at, const RowShape& shape, const RowExtremes& extremes, const Reader& reader) {
    const bool smoothing = job_.label_smoothing != 0;
    const RowSums sums = SumColumns(reader, shape, extremes, smoothing, at.grad != nullptr ? scratch_.exponentials : nullptr);
    const double max = extremes.max();
    RowTotals totals;
    totals.others = sums.exponentials;
    totals.target_exponential = exp(extremes.target - max);
    totals.sum = sums.exponentials + totals.target_exponential;
    totals.log_sum = extremes.lead() >= 0 ? log1p(sums.exponentials) : log(totals.sum);
    totals.nll = (max - extremes.target) + totals.log_sum;
    totals.log_z = max + totals.log_sum;
    totals.mean_difference = (sums.differences + (extremes.target - max)) / static_cast<double>(shape.columns);
    // exp(-inf - max) is 0, so a -inf target has nll +inf; a -inf column makes
    // the mean -inf and the objective +inf.
    totals.finite = extremes.target != -HUGE_VAL && !(smoothing && extremes.has_minus_infinity);
    totals.correct = extremes.target_is_first();
    totals.max_abs = extremes.max_abs;
    totals.share = 1;
    outputs_.template Finish<Reader::kMapped>(at, shape, totals);
  }

  const CrossEntropyJob& job_;
  const RowScratch& scratch_;
  LaunchCounters* counters_;
  RowOutputs<Element> outputs_;
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
