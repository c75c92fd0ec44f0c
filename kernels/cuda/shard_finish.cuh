// Second kernel of the vocabulary-parallel loss, once every rank has all contributions: losses, this rank's gradient, signals. The logits are read a second time,
// and only where a gradient is wanted. A group of warps takes 32 rows at a time: its first warp merges them, a lane a row; all of it goes over their columns; the
// first warp books them.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_FINISH_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_FINISH_CUH_

#include "kernels/cuda/shard_merge.cuh"

namespace lossgauge::cuda {

// One value in columns [0, to) of a gradient row: for the few rows that have no gradient.
template <class C>
__device__ __forceinline__ void FillColumns(const Group<C>& group, unsigned char* row, int to, float value) {
  using E = Element<typename C::T>;
  const uint32_t packed = E::Pack(value, value);
  for (int c = group.thread; c < to; c += C::GROUP_THREADS) {
    if constexpr (E::kBytes == 2) reinterpret_cast<unsigned short*>(row)[c] = static_cast<unsigned short>(packed);
    else reinterpret_cast<uint32_t*>(row)[c] = packed;
  }
}

// One row, by one lane: what its contributions come to, and its losses. Returns how many of them are not proven.
template <class C>
__device__ __noinline__ unsigned Merge(const ShardLaunch& a, const Sender* senders, long long row, WholeRow* m) {
  const long long target = ReadTarget(a.loss, row);
  unsigned bad = 0;
  const RowProof proof = ProveRow(a, senders, row, target, [&bad](int) { ++bad; });
  m->row = row;
  m->live = IsLive(a, target);
  m->target = m->live ? static_cast<int>(target) : 0;
  m->local_target = m->live ? LocalTarget(a, target) : kNoTarget;
  m->max_abs_column = INT_MAX;
  m->mass = m->squares = 0.f;
  m->finite = m->nonfinite = m->hit = m->correct = m->nonfinite_grad = false;
  m->unproven = proof.proven ? !proof.agreed : m->live;
  float loss = NAN, log_z = NAN;
  if (m->unproven) {
    m->kind = RowKind::kPoisoned;
  } else if (!m->live) {
    m->kind = RowKind::kLeftOut;
    loss = log_z = 0.f;
  } else if (proof.nan || proof.max == -INFINITY) {
    m->kind = RowKind::kPoisoned;
    m->nonfinite = true;
  } else {
    m->kind = RowKind::kOrdinary;
    MergeRow<C::SIGNALS>(a, senders, row, proof.max, m);
    loss = static_cast<float>(m->loss.objective);
    log_z = static_cast<float>(m->loss.log_z);
  }
  if (!m->finite) m->loss.finite = false;
  if (a.loss.losses != nullptr) a.loss.losses[row] = loss;
  if (a.loss.log_z != nullptr) a.loss.log_z[row] = log_z;
  return bad;
}

// Up to 32 rows, one a lane where `mine`, into the group's tally.
template <class C>
__device__ __noinline__ void Book(const ShardLaunch& a, const WholeRow& m, bool mine, unsigned bad, CtaTally* tally, int lane) {
  const long long target = mine ? ReadTarget(a.loss, m.row) : 0;
  const bool live = mine && m.live, counts = mine && (m.finite || m.nonfinite);
  AddCounts(tally, kTokens, mine, lane);
  AddCounts(tally, kUnmaskedTokens, live, lane);
  AddCounts(tally, kBadTargets, mine && m.kind == RowKind::kLeftOut && target != a.loss.ignore_index, lane);
  if (__any_sync(~0u, mine && m.unproven) && lane == 0) tally->nonfinite = 1;  // of the scalar loss
  const RowLoss l = counts ? m.loss : RowLoss{};
  if constexpr (!C::SIGNALS) {
    TallyObjectives(tally, l, counts, lane);
  } else {
    const Word of_targets = WarpSum(live ? static_cast<Word>(lg_target_hash(target)) : 0ull);
    const Word of_positions = WarpSum(live ? static_cast<Word>(lg_position_hash(ReadPosition(a.loss, m.row), target)) : 0ull);
    const unsigned all_bad = __reduce_add_sync(~0u, bad);
    if (lane == 0) {
      tally->counts[kTargetFingerprint] += of_targets;
      tally->counts[kMaskFingerprint] += of_positions;
      tally->counts[kExchangeBadRows] += all_bad;
    }
    const int column = static_cast<int>(min(m.max_abs_column + static_cast<long long>(a.own.shard_offset), static_cast<long long>(INT_MAX)));
    TallyRows(a.loss, tally, {m.row, m.target, m.sums.z_target, m.max_abs, column, m.correct, m.hit}, l, counts, lane);
    if (a.loss.grad != nullptr) TallyGradients(tally, m.mass, m.squares, m.nonfinite_grad, mine && m.finite, lane, mine ? m.share : 0.f);
  }
}

// The gradient of an ordinary row.
template <class C>
__device__ __forceinline__ typename RowWork<C>::Emitted WriteShardGradient(const ShardLaunch& a, const RowWork<C>& work, const WholeRow& m, const Factor& factor) {
  using T = typename C::T;
  RowGradient g = MakeRowGradient(m.sums, factor, a.loss.label_smoothing, a.loss.z_loss_weight, static_cast<int>(a.own.vocab_size), 1.);
  const float target_exponential = m.hit ? m.sums.target : 0.f;
  if constexpr (C::MAPPED) {
    const auto reference = work.map.AtZ(m.max);
    if (m.hit) g.target *= work.map.SlopeAt(work.target_logit);
    using Far = MappedGradient<T, C::MAP, C::SIGNALS>;
    Far far(g, work.map, reference, 1.f);
    if constexpr (C::NEAR) return work.WriteGradient(nullptr, NearGradient<T, C::SIGNALS, Far>(work.map, g, m.max, far), target_exponential, factor.restore);
    else return work.WriteGradient(nullptr, far, target_exponential, factor.restore);
  } else {
    return work.WriteGradient(nullptr, GradientSweep<T, C::SIGNALS>(g, UnscaledSlopes()), target_exponential, factor.restore);
  }
}

// The sender with most bad rows of the launch, the first of several, into the counters. By the last CTA, and only if there is one: it looks at all contributions
// again, so that a launch needs no memory for a count of each sender.
template <class C>
__device__ __noinline__ void NameWorstSender(const ShardLaunch& a, const Sender* senders, const CtaTally* tallies) {
  __shared__ unsigned bad_rows[kMostRanks];
  __shared__ bool is_mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    bool bad = false;
    for (int group = 0; group < C::GROUPS; ++group) bad |= tallies[group].counts[kExchangeBadRows] != 0;
    LaunchScratch* const scratch = a.loss.scratch;
    if (bad) atomicOr(&scratch->bad_exchange, 1u);
    __threadfence();
    const bool last = atomicAdd(&scratch->exchanged_ctas, 1u) == gridDim.x - 1;
    is_mine = last && atomicExch(&scratch->bad_exchange, 0u) != 0;
    if (last) scratch->exchanged_ctas = scratch->best_abs = 0;
  }
  for (int s = threadIdx.x; s < kMostRanks; s += C::THREADS) bad_rows[s] = 0;
  __syncthreads();
  if (!is_mine) return;
  for (long long row = threadIdx.x; row < a.loss.rows; row += C::THREADS) {
    ProveRow(a, senders, row, ReadTarget(a.loss, row), [&](int s) { atomicAdd(&bad_rows[s], 1u); });
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  Word worst = 0;
  for (int s = 0; s < static_cast<int>(a.own.group_size); ++s) {
    if (bad_rows[s] != 0) worst = max(worst, (static_cast<Word>(bad_rows[s]) << 20) + (1u << 20) - static_cast<unsigned>(s));
  }
  atomicMax(&a.loss.counters->exchange_worst, worst);
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::CTAS) ShardFinishKernel(const __grid_constant__ ShardLaunch a) {
  using T = typename C::T;
  __shared__ float4 scratch[C::GROUPS][C::WARPS];
  __shared__ CtaTally tallies[C::GROUPS];
  __shared__ WholeRow merged_rows[C::GROUPS][32];
  __shared__ Sender senders[kMostRanks];
  __shared__ unsigned launch_best[C::GROUPS];
  // Read once for all, who must agree which row takes another look, where they wait for each other: launches on other streams raise it meanwhile.
  __shared__ unsigned largest_before;
  if (C::SIGNALS && threadIdx.x == 0) largest_before = static_cast<unsigned>(a.loss.counters->worst_logit.high >> 32) & 0x7fffffffu;
  for (unsigned i = threadIdx.x; i < sizeof(tallies) / 8; i += C::THREADS) reinterpret_cast<Word*>(tallies)[i] = 0;
  JudgeSenders(a, senders);
  __shared__ SharedMap<C> shared_map;
  shared_map.Make(a.loss);
  __syncthreads();
  const int group_index = threadIdx.x / C::GROUP_THREADS, lane = threadIdx.x & 31;
  const Group<C> group{scratch, group_index, static_cast<int>(threadIdx.x % C::GROUP_THREADS) >> 5, lane, static_cast<int>(threadIdx.x % C::GROUP_THREADS)};
  HeldMap<C> map = shared_map.Get(a.loss);
  WholeRow* const merged = merged_rows[group_index];
  CtaTally& tally = tallies[group_index];
  unsigned best_abs = C::SIGNALS ? largest_before : 0u;
  const double denominator = ReadDenominator(a.loss);
  float factor_of = 1.f;
  Factor factor = MakeFactor<T>(factor_of, denominator, 1.);
  const long long step = static_cast<long long>(gridDim.x) * C::GROUPS;
  const bool sweeps = a.loss.grad != nullptr || C::SIGNALS;
  // The last rows first: they are what the first kernel has left in the L2.
  for (long long first = a.loss.rows - 1 - (static_cast<long long>(blockIdx.x) * C::GROUPS + group_index); first >= 0; first -= 32 * step) {
    const int count = static_cast<int>(min(32ll, first / step + 1));
    unsigned bad = 0;
    if (group.warp == 0 && lane < count) bad = Merge<C>(a, senders, first - lane * step, &merged[lane]);
    if constexpr (C::SIGNALS) {
      if (group.warp == 0) {
        const unsigned most = __reduce_max_sync(~0u, lane < count && merged[lane].finite ? __float_as_uint(merged[lane].max_abs) : 0u);
        if (lane == 0 && most != 0) atomicMax(&a.loss.scratch->best_abs, most);
      }
    }
    group.Sync();
    for (int i = 0; sweeps && i < count; ++i) {
      WholeRow& m = merged[i];
      unsigned char* const grad = a.loss.grad == nullptr ? nullptr : a.loss.grad + m.row * a.loss.grad_stride_bytes;
      if (m.kind == RowKind::kLeftOut) {
        if (grad != nullptr) ZeroColumns<C>(group, grad, 0, a.loss.columns);
        continue;
      }
      if (grad != nullptr) {
        if (const float scale = ReadScale(a.loss, m.row); scale != factor_of) {
          factor = MakeFactor<T>(scale, denominator, 1.);
          factor_of = scale;
        }
      }
      if (m.kind == RowKind::kPoisoned) {
        if (grad != nullptr) FillColumns<C>(group, grad, a.loss.vocab_size, factor_of == 0.f ? 0.f : NAN);
      } else {
        const RowWork<C> work = WorkOnRow<C>(a, group, map, m.row, m.local_target);
        if constexpr (C::SIGNALS) {
          // Equal values count: the lowest position decides, and rows come in any order.
          if (m.finite && __float_as_uint(m.max_abs) >= best_abs) {
            if (group.thread == 0) launch_best[group_index] = *static_cast<const volatile unsigned*>(&a.loss.scratch->best_abs);
            group.Sync();
            best_abs = max(best_abs, launch_best[group_index]);
            group.Sync();
            if (__float_as_uint(m.max_abs) >= best_abs) {
              const uint2 l = work.LookAgain(true, m.max_abs);
              if (group.thread == 0) m.max_abs_column = static_cast<int>(l.y);
            }
          }
        }
        if (grad != nullptr) {
          if constexpr (C::MAPPED) group.Sync();  // all have the target's logit
          const auto emitted = WriteShardGradient<C>(a, work, m, factor);
          if (group.thread == 0) {
            m.mass = emitted.mass;
            m.squares = emitted.squares;
            m.nonfinite_grad = emitted.nonfinite;
          }
        }
      }
      if (grad != nullptr && a.loss.columns > a.loss.vocab_size) ZeroColumns<C>(group, grad, a.loss.vocab_size, a.loss.columns);
    }
    group.Sync();  // what the rows left is there, and nobody needs them any more
    if (group.warp == 0) Book<C>(a, merged[lane], lane < count, bad, &tally, lane);
  }
  if constexpr (C::SIGNALS) NameWorstSender<C>(a, senders, tallies);
  if (group.warp == 0) {
    __syncwarp();
    EndLoss(a.loss, &tally, nullptr, gridDim.x * C::GROUPS, lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_FINISH_CUH_
