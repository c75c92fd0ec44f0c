// What a rank makes of a row's contributions from all ranks of its group: first whether they may be believed, then the row's sums over the whole vocabulary.
// In rank order and in double, so that every rank gets the same bits.
#ifndef LOSSGAUGE_KERNELS_CPU_MERGE_INL_H_
#define LOSSGAUGE_KERNELS_CPU_MERGE_INL_H_

#include <math.h>

#include "kernels/cpu/row_outputs_inl.h"
#include "kernels/cpu/shard_job.h"

HWY_BEFORE_NAMESPACE();
namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

struct ShardRowWords {
  std::uint64_t words[LG_SHARD_ROW_BYTES / 8];
};

HWY_INLINE std::uint64_t TagOf(const lg_shard_row& said, std::uint64_t salt, std::int64_t row) {
  ShardRowWords bytes;
  __builtin_memcpy(&bytes, &said, sizeof bytes);
  return lg_shard_row_tag(salt, row, bytes.words);
}

HWY_INLINE lg_shard_row LoadShardRow(const ShardJob& shard, std::int32_t sender, std::int64_t row) {
  lg_shard_row said;
  __builtin_memcpy(&said, shard.gathered + sender * shard.gathered_stride + LG_SHARD_HEADER_BYTES + row * LG_SHARD_ROW_BYTES, sizeof said);
  return said;
}

struct RowProof {
  bool proven = true;  // every sender's
  bool agreed = true;  // all that are proven mean the same target
};

// Counts each contribution that is not proven in `bad_rows` of its sender. A sender that contradicts its own header about who holds the target is not believed
// either.
HWY_NOINLINE RowProof ProveRow(const ShardJob& shard, std::int64_t row, std::int64_t target, bool live, std::uint64_t* bad_rows) {
  RowProof proof;
  for (std::int32_t s = 0; s < shard.group_size; ++s) {
    const ShardSender& sender = shard.senders[s];
    const lg_shard_row said = LoadShardRow(shard, s, row);
    bool proven = sender.proven && said.tag == TagOf(said, sender.salt, row);
    if (proven && said.target_id != target) proof.agreed = false;
    else if (proven) proven = lg_shard_row_fits(&said, live, sender.first_column, sender.columns) != 0;
    if (proven) continue;
    ++bad_rows[s];
    proof.proven = false;
  }
  return proof;
}

// Of a live row whose contributions are proven and agree. False: a NaN, a +inf, or only -inf, on whichever rank.
HWY_NOINLINE bool MergeRow(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t row, RowTotals* totals, double* max) {
  *max = -HUGE_VAL;
  std::uint32_t flags = 0;
  for (std::int32_t s = 0; s < shard.group_size; ++s) {
    const lg_shard_row said = LoadShardRow(shard, s, row);
    if (said.max > *max) *max = said.max;
    flags |= said.flags;
  }
  if ((flags & LG_SHARD_NAN) != 0 || *max == -HUGE_VAL) return false;
  const bool smoothing = job.label_smoothing != 0;
  double others = 0, differences = 0, own_others = 0;
  lg_shard_row holder{};
  std::int32_t holder_index = 0;
  for (std::int32_t s = 0; s < shard.group_size; ++s) {
    const lg_shard_row said = LoadShardRow(shard, s, row);
    const double part = said.others * exp(said.max - *max);
    others += part;
    if (s == shard.group_index) own_others = part, totals->max_abs = said.max_abs;
    // 0 columns have max -inf, and 0 * -inf is no difference.
    const std::int64_t columns = shard.senders[s].columns;
    if (smoothing && columns > 0) differences += said.differences + static_cast<double>(columns) * (said.max - *max);
    if ((said.flags & LG_SHARD_HAS_TARGET) != 0) holder = said, holder_index = s;
  }
  const bool leads = (holder.flags & LG_SHARD_TARGET_LEADS) != 0 && holder.max == *max;
  totals->others = others;
  totals->target_exponential = exp(holder.target + (holder.max - *max));
  totals->sum = others + totals->target_exponential;
  totals->log_sum = leads ? log1p(others) : log(totals->sum);
  totals->nll = ((*max - holder.max) - holder.target) + totals->log_sum;
  totals->log_z = *max + totals->log_sum;
  totals->mean_difference = differences / static_cast<double>(job.classes);
  totals->finite = holder.target != -HUGE_VAL && !(smoothing && (flags & LG_SHARD_MINUS_INFINITY) != 0);
  totals->share = (own_others + (holder_index == shard.group_index ? totals->target_exponential : 0.0)) / totals->sum;
  totals->correct = (holder.flags & LG_SHARD_TARGET_IS_FIRST) != 0;
  if (!job.signals || !totals->correct) return true;
  const auto target_z = static_cast<float>(holder.max);
  for (std::int32_t s = 0; s < shard.group_size; ++s) {
    if (s == holder_index) continue;
    const auto rival = static_cast<float>(LoadShardRow(shard, s, row).max);
    const bool before = shard.senders[s].first_column < shard.senders[holder_index].first_column;
    if (before ? rival >= target_z : rival > target_z) totals->correct = false;
  }
  return true;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu
HWY_AFTER_NAMESPACE();

#endif  // LOSSGAUGE_KERNELS_CPU_MERGE_INL_H_
