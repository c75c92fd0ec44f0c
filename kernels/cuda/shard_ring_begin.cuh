// First kernel of the vocabulary-parallel loss for long rows: as ShardBeginKernel, through a ring of slots
// (shard_ring_layout.cuh).
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_RING_BEGIN_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_RING_BEGIN_CUH_

#include "kernels/cuda/shard_begin.cuh"
#include "kernels/cuda/shard_ring_layout.cuh"

namespace lossgauge::cuda {

// Of the columns other than the target that a sweeper has read in a row: largest z, sum of e^(z - it), largest finite |z| with
// the sign bit if one was -inf, sum of z; apart from these the largest z of the columns before the target.
struct SweptPart {
  float max, sum, max_abs, z_sum;
};

// A sweeper's largest finite |z|, read again from memory: for rows with infinite logits.
template <class C>
static __device__ __noinline__ float FiniteMagnitude(RowPart part, int w, int lane, int vocab) {
  unsigned best = 0;
  ReadAgain<C>(part, part.base, w, lane, vocab, [&](int column, float z) {
    const unsigned bits = __float_as_uint(z) & 0x7fffffffu;
    if (column != part.target && bits < 0x7f800000u) best = max(best, bits);
  });
  return __uint_as_float(__reduce_max_sync(~0u, best));
}

template <class C>
__device__ __forceinline__ void RunBeginSweeper(uint32_t base, const ShardLaunch& a, const Turns& turns, int w, int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  const bool smoothing = a.loss.label_smoothing != 0.f;
  const auto target_of = [&](int turn) { return turn < turns.count ? ReadTarget(a.loss, turns.Row(turn)) : a.loss.ignore_index; };
  SlotCursor<C> slot(base);
  HalfCursor at;
  long long next_targets = target_of(lane);
  for (int turn = 0; turn < turns.count; turn += kBatchRows, at.Next()) {
    const long long targets = next_targets;
    const unsigned live = __ballot_sync(~0u, IsLive(a, targets));
    const int local = LocalTarget(a, targets), count = turns.Batch(turn);
    next_targets = target_of(turn + kBatchRows + lane);
    BarrierWait(base + C::READY + at.half * 8, at.phase);
    for (int i = 0; i < count; ++i) {
      const RowPart part = MakeRowPart<C>(a.loss, static_cast<int>(turns.Row(turn + i)), __shfl_sync(~0u, local, i), 0.f, 0);
      if ((live >> i & 1) == 0) continue;
      Reduction<T, true> r(UnscaledSlopes());
      for (int first = 0; first < part.units(); first += C::UCAP) {
        const uint32_t data = slot.data() + lane * 16;
        BarrierWait(slot.full(), slot.phase);
        ForShare<C, C::G>(
            part, first, w, false,
            [&](auto n, int u) {
              constexpr int N = decltype(n)::value;
              uint4 q[N];
#pragma unroll
              for (int j = 0; j < N; ++j) q[j] = LoadShared16(data + (u - first + j) * kUnitBytes);
              r.Take(q, smoothing);
              if (u + N <= part.target_unit) r.max_before = r.packed_max;
            },
            [&](int u) {
              const int vector = u * kUnitVectors + lane;
              const bool valid = vector < part.vectors;
              uint4 q = make_uint4(0u, 0u, 0u, 0u);
              if (valid) q = LoadShared16(data + (u - first) * kUnitBytes);
              __syncwarp();
              r.TakeSome(q, part.column + vector * kElements, a.loss.vocab_size, part.target, valid, smoothing);
            });
        ArriveTogether(slot.empty(), lane);
        slot.Next();
      }
      SweptPart found;
      found.max = WarpMax(r.max());
      found.sum = WarpSum(r.Sum() * Exp2((r.max() - found.max) * kLog2E));
      found.max_abs = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(r.LargestMagnitude()) & 0x7fffffffu));
      found.z_sum = smoothing ? WarpSum(r.z_sum.Share(lane)) : 0.f;
      const float before = WarpMax(WordMax<T>(r.max_before));
      if (found.max_abs == INFINITY) found.max_abs = -FiniteMagnitude<C>(part, w, lane, a.loss.vocab_size);
      if (lane == 0) {
        const uint32_t place = (at.half * kBatchRows + i) * C::G + w;
        StoreShared16(base + C::FOUND + place * 16, __float_as_uint(found.max), __float_as_uint(found.sum), __float_as_uint(found.max_abs),
                      __float_as_uint(found.z_sum));
        StoreShared4(base + C::FOUND_TOO + place * 4, __float_as_uint(before));
      }
    }
    ArriveTogether(base + C::DONE + at.half * 8, lane);
  }
}

// What the sweepers have found in a row, in their order.
template <class C>
__device__ __forceinline__ void FoldRow(uint32_t base, int place, int local, ReadRow* r) {
  r->others_max = kLowest;
  float before = -INFINITY;
  for (int w = 0; w < C::G; ++w) {
    r->others_max = fmaxf(r->others_max, __uint_as_float(LoadShared4(base + C::FOUND + (place * C::G + w) * 16)));
    before = fmaxf(before, __uint_as_float(LoadShared4(base + C::FOUND_TOO + (place * C::G + w) * 4)));
  }
  for (int w = 0; w < C::G; ++w) {
    const uint4 x = LoadShared16(base + C::FOUND + (place * C::G + w) * 16);
    r->others += __uint_as_float(x.y) * Exp2((__uint_as_float(x.x) - r->others_max) * kLog2E);
    r->minus_infinity |= (x.z & 0x80000000u) != 0;
    r->max_abs = fmaxf(r->max_abs, __uint_as_float(x.z & 0x7fffffffu));
    r->others_z += __uint_as_float(x.w);
  }
  r->others_top = r->others_max;
  r->has_target = local != kNoTarget;
  if (!r->has_target) return;
  const float z_target = static_cast<float>(r->z_target);
  if (fabsf(z_target) < INFINITY) r->max_abs = fmaxf(r->max_abs, fabsf(z_target));
  r->minus_infinity |= z_target == -INFINITY;
  r->target_is_first = z_target > r->others_max || (z_target == r->others_max && before != z_target);
}

template <class C>
__device__ __forceinline__ void RunBeginKeeper(uint32_t base, const ShardLaunch& a, const Turns& turns, int lane) {
  using E = Element<typename C::T>;
  for (int half = 0; half < 2; ++half) ArriveTogether(base + C::READY + half * 8, lane);
  HalfCursor at;
  for (int turn = 0; turn < turns.count; turn += kBatchRows, at.Next()) {
    const bool mine = turn + lane < turns.count;
    const long long row = mine ? turns.Row(turn + lane) : 0, target = mine ? ReadTarget(a.loss, row) : a.loss.ignore_index;
    ReadRow r{row, target, 0., 0., 0.f, 0.f, 0.f, 0.f, IsLive(a, target), false, false, false};
    const int local = r.live ? LocalTarget(a, target) : kNoTarget;
    r.z_target = NAN;
    if (local != kNoTarget) r.z_target = E::Load(a.loss.logits + row * a.loss.row_stride_bytes + static_cast<long long>(local) * E::kBytes);
    BarrierWait(base + C::DONE + at.half * 8, at.phase);
    if (r.live) FoldRow<C>(base, at.half * kBatchRows + lane, local, &r);
    ArriveTogether(base + C::READY + at.half * 8, lane);
    if (mine) WriteShardRow(a, r);
    __syncwarp();
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::CTAS) ShardRingBeginKernel(const __grid_constant__ ShardLaunch a) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = SharedAddress(shared);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Turns turns = TurnsOf(a.loss.rows, false);
  RowFeed<C> feed(a, base, turns, lane);
  if (warp == 0) {
    if (lane == 0) SetUpShardRing<C>(base);
    __syncwarp();
    feed.Fill(C::NBUF);
  }
  __syncthreads();
  if (warp == 0) {
    feed.Fill(INT_MAX);
  } else if (warp == 1) {
    if (blockIdx.x == 0 && lane < LG_SHARD_HEADER_BYTES / 8) reinterpret_cast<Word*>(a.contribution)[lane] = reinterpret_cast<const Word*>(&a.own)[lane];
    RunBeginKeeper<C>(base, a, turns, lane);
  } else {
    RunBeginSweeper<C>(base, a, turns, warp - C::kServiceWarps, lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_RING_BEGIN_CUH_
