// What a rank makes of a group's contributions: first who of it is to be believed, then each row's sums over the whole vocabulary. In rank order and in double, so
// that every rank gets the same bits. One lane a row.
//
// The host cannot read what a stream has yet to write. So what it would refuse by name (kernels/host/vocab_parallel_group.h) is here a sender that is not
// believed: each of its rows is counted, and no row has a loss.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_MERGE_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_MERGE_CUH_

#include "kernels/cuda/shard_rows.cuh"

namespace lossgauge::cuda {

struct Sender {
  long long first_column;
  int columns;  // real ones
  bool believed;
};

// Words of a header.
constexpr int kHeaderWords = LG_SHARD_HEADER_BYTES / 8, kSenderWord = 1, kOffsetWord = 6, kColumnsWord = 7;
static_assert(offsetof(lg_shard_header, sender) == 8 * kSenderWord && offsetof(lg_shard_header, shard_offset) == 8 * kOffsetWord &&
                  offsetof(lg_shard_header, shard_columns) == 8 * kColumnsWord,
              "layout of a header");

// The sender's header has the right tag, is of this call, and fits this rank's.
__device__ __forceinline__ Sender ReadSender(const ShardLaunch& a, int index) {
  const uint64_t* const from = reinterpret_cast<const uint64_t*>(a.gathered + index * a.gathered_stride);
  const uint64_t* const own = reinterpret_cast<const uint64_t*>(&a.own);
  uint64_t words[kHeaderWords];
#pragma unroll
  for (int i = 0; i < kHeaderWords; ++i) words[i] = from[i];
  bool believed = words[kHeaderWords - 1] == lg_shard_header_tag(SaltOf(a, index), words);
#pragma unroll
  for (int i = 0; i < kHeaderWords - 1; ++i) {
    if (i == kOffsetWord || i == kColumnsWord) continue;
    believed = believed && words[i] == (i == kSenderWord ? (own[i] & ~0xffffffffull) | static_cast<unsigned>(index) : own[i]);
  }
  const long long offset = static_cast<long long>(words[kOffsetWord]), columns = static_cast<long long>(words[kColumnsWord]);
  believed = believed && offset >= 0 && columns >= 0 && columns <= a.own.vocab_size && offset <= a.own.vocab_size - columns;
  if (index == static_cast<int>(a.own.sender)) believed = believed && offset == a.own.shard_offset && columns == a.own.shard_columns;
  return {offset, believed ? static_cast<int>(columns) : 0, believed};
}

// Fills senders[group_size] in shared memory. If all of them are believed and their columns do not cover the vocabulary once, the one whose columns begin
// elsewhere than those before them end is not, or, if they end too early, the last one. All threads of the CTA.
__device__ __forceinline__ void JudgeSenders(const ShardLaunch& a, Sender* senders) {
  __shared__ Word misplaced, last, covered;  // places: first column and index
  const int count = static_cast<int>(a.own.group_size), thread = threadIdx.x, threads = blockDim.x;
  if (thread == 0) misplaced = ~0ull, last = covered = 0;
  bool all = true;
  for (int s = thread; s < count; s += threads) all &= (senders[s] = ReadSender(a, s)).believed;
  if (!__syncthreads_and(all)) return;  // what a rank that is not believed holds is not known
  const auto place = [senders](int s) { return static_cast<Word>(senders[s].first_column) << 16 | static_cast<unsigned>(s); };
  for (int s = thread; s < count; s += threads) {
    if (senders[s].columns == 0) continue;
    long long before = 0;
    for (int other = 0; other < count; ++other) {
      if (senders[other].columns > 0 && place(other) < place(s)) before += senders[other].columns;
    }
    if (before != senders[s].first_column) atomicMin(&misplaced, place(s));
    atomicMax(&last, place(s));
    atomicAdd(&covered, static_cast<Word>(senders[s].columns));
  }
  __syncthreads();
  if (thread == 0) {
    if (misplaced != ~0ull) senders[misplaced & 0xffff].believed = false;
    else if (covered != static_cast<Word>(a.own.vocab_size)) senders[last & 0xffff].believed = false;
  }
  __syncthreads();
}

__device__ __forceinline__ ShardRowWords LoadShardRow(const ShardLaunch& a, int sender, long long row) {
  const uint4* const from = reinterpret_cast<const uint4*>(a.gathered + sender * a.gathered_stride + LG_SHARD_HEADER_BYTES + row * LG_SHARD_ROW_BYTES);
  ShardRowWords words;
#pragma unroll
  for (int i = 0; i < LG_SHARD_ROW_BYTES / 16; ++i) words.packed[i] = from[i];
  return words;
}

struct RowProof {
  bool proven = true;  // every sender's
  bool agreed = true;  // all that are proven mean the same target
  bool nan = false;
  double max = -INFINITY;
};

// Calls bad(sender) for each contribution that is not proven. A sender that contradicts its own header about who holds the target is not believed either.
template <class Bad>
__device__ __forceinline__ RowProof ProveRow(const ShardLaunch& a, const Sender* senders, long long row, long long target, const Bad& bad) {
  RowProof proof;
  const bool live = IsLive(a, target);
  const int count = static_cast<int>(a.own.group_size);
  for (int s = 0; s < count; ++s) {
    const Sender sender = senders[s];
    const ShardRowWords words = LoadShardRow(a, s, row);
    const lg_shard_row& said = words.said;
    bool proven = sender.believed && said.tag == lg_shard_row_tag(SaltOf(a, s), row, words.words);
    if (proven && said.target_id != target) proof.agreed = false;
    else if (proven) proven = lg_shard_row_fits(&said, live, sender.first_column, sender.columns) != 0;
    if (!proven) {
      proof.proven = false;
      bad(s);
    }
    proof.nan |= (said.flags & LG_SHARD_NAN) != 0;
    proof.max = fmax(proof.max, said.max);
  }
  return proof;
}

enum class RowKind : unsigned char {
  kLeftOut,  // masked, or a target out of range: gradient 0
  kPoisoned,
  kOrdinary,
};

// A row over the whole vocabulary, for its gradient, and what its loss and signals leave until its gradient is known.
struct WholeRow {
  RowLoss loss;
  RowSums sums;  // target and others relative to `max`
  double max;    // largest z, no fp32 number where logits are mapped
  long long row;
  int target, local_target;
  float share;    // of the row's probability that these columns should hold
  float max_abs;  // of these columns
  int max_abs_column;
  float mass, squares;
  RowKind kind;
  bool finite, nonfinite, unproven, live, hit, correct, nonfinite_grad;
};

// Of a live row whose contributions are proven and agree, and none of which is NaN.
template <bool kSignals>
__device__ __forceinline__ void MergeRow(const ShardLaunch& a, const Sender* senders, long long row, double largest, WholeRow* m) {
  const int count = static_cast<int>(a.own.group_size), self = static_cast<int>(a.own.sender);
  const bool smoothing = a.loss.label_smoothing != 0.f;
  double others = 0., differences = 0., own_others = 0., holder_max = -INFINITY, holder_target = 0.;
  uint32_t flags = 0, holder_flags = 0;
  int holder = 0;
  for (int s = 0; s < count; ++s) {
    const ShardRowWords words = LoadShardRow(a, s, row);
    const lg_shard_row& said = words.said;
    const double part = said.others * exp(said.max - largest);
    others += part;
    if (s == self) {
      own_others = part;
      m->max_abs = said.max_abs;
    }
    flags |= said.flags;
    // 0 columns have max -inf, and 0 * -inf is no difference.
    if (smoothing && senders[s].columns > 0) differences += said.differences + static_cast<double>(senders[s].columns) * (said.max - largest);
    if ((said.flags & LG_SHARD_HAS_TARGET) != 0) {
      holder = s;
      holder_max = said.max;
      holder_target = said.target;
      holder_flags = said.flags;
    }
  }
  const bool leads = (holder_flags & LG_SHARD_TARGET_LEADS) != 0 && holder_max == largest;
  const double target = exp(holder_target + (holder_max - largest));
  const double log_sum = log(others + target);
  RowLoss& l = m->loss;
  l.log_z = largest + log_sum;
  // log Z - z_t would lose the digits of a confident row.
  l.nll = leads ? log1p(others / target) : ((largest - holder_max) - holder_target) + log_sum;
  l.z_loss = a.loss.z_loss_weight != 0.f ? a.loss.z_loss_weight * l.log_z * l.log_z : 0.;
  l.objective = l.nll + l.z_loss;
  if (smoothing) {
    l.objective = (1. - a.loss.label_smoothing) * l.nll + a.loss.label_smoothing * (log_sum - differences / static_cast<double>(a.own.vocab_size)) + l.z_loss;
  }
  l.finite = holder_target != -INFINITY && !(smoothing && (flags & LG_SHARD_MINUS_INFINITY) != 0);
  m->max = largest;
  m->finite = l.finite;
  m->nonfinite = !l.finite;
  m->hit = holder == self;
  m->sums = {static_cast<float>(largest), static_cast<float>(others), static_cast<float>(target), static_cast<float>(holder_target + holder_max), 0.f, 0.f};
  m->share = static_cast<float>((own_others + (m->hit ? target : 0.)) / (others + target));
  m->correct = false;
  if (!kSignals || (holder_flags & LG_SHARD_TARGET_IS_FIRST) == 0) return;
  m->correct = true;
  const float target_z = static_cast<float>(holder_max);
  for (int s = 0; s < count; ++s) {
    if (s == holder) continue;
    const float rival = static_cast<float>(LoadShardRow(a, s, row).said.max);
    if (senders[s].first_column < senders[holder].first_column ? rival >= target_z : rival > target_z) m->correct = false;
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_MERGE_CUH_
