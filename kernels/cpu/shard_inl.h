// The rows of one rank's columns of the vocabulary: what the other ranks must know of them, and, once every rank knows it of all, loss, gradient and
// signals. Nothing is kept between the two but the contributions: the logits are read again.
#ifndef LOSSGAUGE_KERNELS_CPU_SHARD_INL_H_
#define LOSSGAUGE_KERNELS_CPU_SHARD_INL_H_

#include "kernels/cpu/merge_inl.h"
#include "kernels/cpu/row_inl.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

// Where the target is among the `columns` of a shard; -1 = not there.
HWY_INLINE RowShape ShapeOfShard(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t target) {
  const std::int64_t local = target - shard.first_column;
  return {job.vocab_size, local >= 0 && local < job.vocab_size ? local : -1};
}

template <class Element>
class ShardReader {
 public:
  ShardReader(const CrossEntropyJob& job, const ShardJob& shard, const RowScratch& scratch)
      : job_(job), shard_(shard), scratch_(scratch), outputs_(job, scratch, 0, nullptr), plain_(IsPlain(job)) {}

  void Run(std::int64_t row) const {
    const Row at = outputs_.At(row, outputs_.Target(row));
    lg_shard_row say{};
    say.max = -HUGE_VAL;
    say.target_id = at.target;
    if (outputs_.IsLive(at.target)) Describe(at, &say);
    say.tag = TagOf(say, shard_.salt, row);
    __builtin_memcpy(shard_.contribution_rows + row * LG_SHARD_ROW_BYTES, &say, sizeof say);
  }

 private:
  void Describe(const Row& at, lg_shard_row* say) const {
    const RowShape shape = ShapeOfShard(job_, shard_, at.target);
    const RowExtremes extremes = plain_ ? FindExtremes<Element>(at.logits, shape) : MapRow<Element>(job_, at.logits, shape, scratch_);
    if (extremes.has_nan) {
      say->flags = LG_SHARD_NAN;
      return;
    }
    say->max = extremes.max();
    say->max_abs = extremes.max_abs;
    if (extremes.has_minus_infinity) say->flags |= LG_SHARD_MINUS_INFINITY;
    if (shape.target >= 0) {
      say->flags |= LG_SHARD_HAS_TARGET;
      say->target = extremes.target == -HUGE_VAL ? -HUGE_VAL : extremes.target - say->max;
      if (extremes.target >= extremes.others()) say->flags |= LG_SHARD_TARGET_LEADS;
      if (extremes.target_is_first()) say->flags |= LG_SHARD_TARGET_IS_FIRST;
    }
    const bool smoothing = job_.label_smoothing != 0;
    if (say->max == -HUGE_VAL) {  // z - max would be NaN
      say->differences = smoothing && shape.columns > 0 ? -HUGE_VAL : 0;
      return;
    }
    const RowSums sums = plain_ ? SumColumns(DirectReader<Element>(at.logits, static_cast<float>(say->max)), shape, extremes, smoothing, nullptr)
                                : SumColumns(MappedReader(scratch_, say->max), shape, extremes, smoothing, nullptr);
    say->others = sums.exponentials;
    if (smoothing) say->differences = sums.differences + say->target;
  }

  const CrossEntropyJob& job_;
  const ShardJob& shard_;
  const RowScratch& scratch_;
  const RowOutputs<Element> outputs_;
  const bool plain_;
};

template <class Element>
class ShardFinisher {
 public:
  ShardFinisher(const CrossEntropyJob& job, const ShardJob& shard, const RowScratch& scratch, LaunchCounters* counters, std::uint64_t* bad_rows)
      : job_(job),
        shard_(shard),
        scratch_(scratch),
        counters_(counters),
        bad_rows_(bad_rows),
        outputs_(job, scratch, shard.first_column, counters),
        plain_(IsPlain(job)) {}

  void Run(std::int64_t row) {
    const Row at = outputs_.At(row, outputs_.Target(row));
    ++counters_->tokens;
    const bool live = outputs_.IsLive(at.target);
    const RowProof proof = ProveRow(shard_, row, at.target, live, bad_rows_);
    const bool unproven = proof.proven ? !proof.agreed : live;
    if (!live && !unproven) return outputs_.LeaveOut(at);
    if (live) outputs_.CountUnmasked(at);
    outputs_.ZeroPadding(at);
    RowTotals totals;
    double max;
    if (unproven) {
      ++counters_->unproven_rows;
      outputs_.Poison(at);
    } else if (!MergeRow(job_, shard_, row, &totals, &max)) {
      outputs_.CountNonfinite(at.position);
      outputs_.Poison(at);
    } else {
      Finish(at, totals, max);
    }
  }

 private:
  void Finish(const Row& at, const RowTotals& totals, double max) {
    const RowShape shape = ShapeOfShard(job_, shard_, at.target);
    if (plain_) {
      if (at.grad != nullptr) SumRow<false, true>(DirectReader<Element>(at.logits, static_cast<float>(max)), shape, scratch_.exponentials);
      outputs_.template Finish<false>(at, shape, totals);
      return;
    }
    if (at.grad != nullptr || job_.signals) MapRow<Element>(job_, at.logits, shape, scratch_);
    if (at.grad != nullptr) SumRow<false, true>(MappedReader(scratch_, max), shape, scratch_.exponentials);
    outputs_.template Finish<true>(at, shape, totals);
  }

  const CrossEntropyJob& job_;
  const ShardJob& shard_;
  const RowScratch& scratch_;
  LaunchCounters* counters_;
  std::uint64_t* bad_rows_;
  RowOutputs<Element> outputs_;
  const bool plain_;
};

template <class Element>
HWY_NOINLINE void ReadShard(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t begin, std::int64_t end, const RowScratch& scratch) {
  const ShardReader<Element> reader(job, shard, scratch);
  for (std::int64_t row = begin; row < end; ++row) reader.Run(row);
}

template <class Element>
HWY_NOINLINE void FinishShard(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t begin, std::int64_t end, const RowScratch& scratch,
                              LaunchCounters* counters, std::uint64_t* bad_rows) {
  ShardFinisher<Element> finisher(job, shard, scratch, counters, bad_rows);
  for (std::int64_t row = begin; row < end; ++row) finisher.Run(row);
  // Streamed stores are not ordered by the thread's end.
  if (job.stream_grad) hwy::FlushStream();
}

void BeginShardRows(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t begin, std::int64_t end, const RowScratch& scratch) {
  switch (job.logits_dtype) {
    case LG_DTYPE_FP32:
      return ReadShard<Fp32>(job, shard, begin, end, scratch);
    case LG_DTYPE_BF16:
      return ReadShard<Bf16>(job, shard, begin, end, scratch);
    default:
      return ReadShard<Fp16>(job, shard, begin, end, scratch);
  }
}

void FinishShardRows(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t begin, std::int64_t end, const RowScratch& scratch,
                     LaunchCounters* counters, std::uint64_t* bad_rows) {
  switch (job.logits_dtype) {
    case LG_DTYPE_FP32:
      return FinishShard<Fp32>(job, shard, begin, end, scratch, counters, bad_rows);
    case LG_DTYPE_BF16:
      return FinishShard<Bf16>(job, shard, begin, end, scratch, counters, bad_rows);
    default:
      return FinishShard<Fp16>(job, shard, begin, end, scratch, counters, bad_rows);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_SHARD_INL_H_
