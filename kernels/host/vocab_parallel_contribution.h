/* What the ranks of a tensor-parallel group tell each other about the rows of one vocabulary-parallel loss call: the bytes that
 * lg_vocab_parallel_begin writes, a collective carries unseen, and lg_vocab_parallel_finish reads. This header is their specification.
 *
 *     offset 0      lg_shard_header    who speaks, about which call, and for which columns
 *     offset 128    lg_shard_row       one for each row, in row order, 64 bytes (a cache line) each
 *
 * Gathered, the contributions stand in the order of the ranks in the group, at equal distances. All words are of the machine's byte order.
 *
 * WHAT IS SENT. z are a row's logits as the loss sees them (after scale and soft cap), over the sender's real columns only. A sender sums the
 * exponentials of all columns but the target, relative to its own largest logit: so the merged loss has the digits of an unsharded one, whichever rank
 * holds the target. Where the maximum lies is told by two bits, since all that is asked of it is whether the target is the lowest column that attains it.
 *
 * MERGE, by every rank, in rank order, in double: max = largest of the max; weight_r = exp(max_r - max);
 *     others = sum of others_r * weight_r;   e = exp(target_o + (max_o - max)), o the rank whose columns hold the target
 *     the target leads (LG_SHARD_TARGET_LEADS of o, max_o == max):  nll = log1p(others / e)
 *     else                                                          nll = (max - max_o) - target_o + log(others + e)
 *     log Z = max + log(others + e);   mean of z - max = sum of (differences_r + columns_r * (max_r - max)) / V
 *     no row at all, but a non-finite one: LG_SHARD_NAN of any rank, or max == -inf.
 *
 * PROOF. `tag` of the header covers its words, that of a row its words and its place: step, micro-batch, row, sender. A receiver computes what the tag must
 * be if the bytes are that sender's answer to this very call. Wrong: the contribution is missing, stale, another's, or was changed on its way.
 * A chunk of linear cross-entropy is such a call: `rows` is that of the whole, and micro_batch has the chunk's number plus 1 above its 40 bits.
 *
 * Compiles as C11, C++17 and CUDA C++. A change of this layout raises LG_SHARD_VERSION; ranks of other versions are refused.
 */
#ifndef LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_CONTRIBUTION_H_
#define LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_CONTRIBUTION_H_

#include "proto/lossgauge/ring/ring_abi.h"

#define LG_SHARD_MAGIC UINT32_C(0x5653474c) /* "LGSV" read as bytes */
#define LG_SHARD_VERSION 1u
#define LG_SHARD_HEADER_BYTES 128
#define LG_SHARD_ROW_BYTES 64

typedef struct lg_shard_header {
  uint32_t magic;
  uint32_t version;
  /* place of the call: what the tags are salted with */
  uint32_t sender; /* index in the group */
  int32_t logits_dtype;
  int64_t step;
  int64_t micro_batch;
  /* must fit together over the group */
  int64_t rows;
  int64_t group_size;
  int64_t shard_offset;
  int64_t shard_columns; /* real ones */
  int64_t vocab_size;
  int64_t position_base;
  int64_t ignore_index;
  double label_smoothing;
  double z_loss_weight;
  double logit_scale;
  double logit_softcap;
  uint64_t tag;
} lg_shard_header;

enum {
  LG_SHARD_HAS_TARGET = 1 << 0, /* the target is one of the sender's columns */
  LG_SHARD_TARGET_LEADS = 1 << 1, /* no other column of the sender is larger */
  LG_SHARD_TARGET_IS_FIRST = 1 << 2, /* the target is the sender's lowest column that attains its maximum; as fp32 */
  LG_SHARD_NAN = 1 << 3, /* a NaN or +inf: nothing else of the row is said */
  LG_SHARD_MINUS_INFINITY = 1 << 4 /* at least one column is -inf */
};

/* Masked rows and targets out of range: all 0 but max (-inf), target_id and tag. */
typedef struct lg_shard_row {
  double max; /* largest z; -inf if there is no column, or only such ones */
  double target; /* z[target] - max, at most 0; 0 without LG_SHARD_HAS_TARGET, -inf if z[target] is */
  double others; /* sum of exp(z - max) over all columns but the target */
  double differences; /* sum of z - max over all columns; 0 without label smoothing */
  int64_t target_id; /* as the sender has it */
  uint32_t flags; /* LG_SHARD_* */
  float max_abs; /* largest finite magnitude of z, 0 if there is none; for the sender itself */
  uint64_t reserved; /* 0 */
  uint64_t tag;
} lg_shard_row;

LG_RING_ASSERT(sizeof(lg_shard_header) == LG_SHARD_HEADER_BYTES, "size of lg_shard_header");
LG_RING_ASSERT(sizeof(lg_shard_row) == LG_SHARD_ROW_BYTES, "size of lg_shard_row");
LG_RING_ASSERT(offsetof(lg_shard_header, tag) == LG_SHARD_HEADER_BYTES - 8, "the tag is the header's last word");
LG_RING_ASSERT(offsetof(lg_shard_row, tag) == LG_SHARD_ROW_BYTES - 8, "the tag is a row's last word");

/* A sender's part of the tags of one call. */
LG_RING_FN uint64_t lg_shard_salt(int64_t step, int64_t micro_batch, uint32_t sender) {
  return lg_ring_checksum_share((uint64_t)step, 101) + lg_ring_checksum_share((uint64_t)micro_batch, 102) + lg_ring_checksum_share(sender, 103);
}

/* `words`: those before the tag. Shares are summed mod 2^64, in any order. */
LG_RING_FN uint64_t lg_shard_tag(uint64_t salt, int64_t row, const uint64_t* words, int count) {
  uint64_t sum = salt + lg_ring_checksum_share((uint64_t)row, 104);
  for (int i = 0; i < count; ++i) sum += lg_ring_checksum_share(words[i], (uint64_t)i);
  return sum;
}

/* `words`: the whole structure as 64-bit words. */
LG_RING_FN uint64_t lg_shard_header_tag(uint64_t salt, const uint64_t* words) { return lg_shard_tag(salt, -1, words, LG_SHARD_HEADER_BYTES / 8 - 1); }
LG_RING_FN uint64_t lg_shard_row_tag(uint64_t salt, int64_t row, const uint64_t* words) {
  return lg_shard_tag(salt, row, words, LG_SHARD_ROW_BYTES / 8 - 1);
}
/* Whether a row of the right tag and target fits its sender's header, of columns [first_column, first_column + columns): who holds the target must say so, and
 * nobody else may. `live`: the row is neither masked nor out of range. */
LG_RING_FN int lg_shard_row_fits(const lg_shard_row* said, int live, int64_t first_column, int64_t columns) {
  const int holds = live && said->target_id >= first_column && said->target_id < first_column + columns;
  if (holds) return (said->flags & (LG_SHARD_HAS_TARGET | LG_SHARD_NAN)) != 0;
  return (said->flags & LG_SHARD_HAS_TARGET) == 0;
}

#endif /* LOSSGAUGE_KERNELS_HOST_VOCAB_PARALLEL_CONTRIBUTION_H_ */
