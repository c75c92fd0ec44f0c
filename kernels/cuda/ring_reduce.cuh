// Reducer warps of the ring kernel: one sweep over the row's bytes in shared memory for maximum, sum of exponentials, and what else needs every logit.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_REDUCE_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_REDUCE_CUH_

#include "kernels/cuda/ring_merge.cuh"

namespace lossgauge::cuda {

// N units from shared memory.
template <class C, int N, class R>
__device__ __forceinline__ void TakeUnits(R* r, uint32_t from) {
  uint4 q[N];
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] = LoadShared16(from + i * kUnitBytes);
  r->Take(q, C::SMOOTHING);
}

// Finite magnitude and lowest column of the largest |z| over the units that this warp has reduced: they are still in the ring, since gradient warps
// wait for this warp's result. `largest` is that magnitude, or infinite if there were columns of -inf. Called for few rows: those that reach the CTA's
// largest so far, and those with -inf columns.
template <class C>
__device__ __noinline__ uint2 FindLargest(SlotCursor<C> slot, int qs, int w, int lane, int vocab, float largest) {
  using T = typename C::T;
  using E = Element<T>;
  constexpr int kElements = kVectorElements<T>;
  const RowPart part = LoadPart<C>(slot.base, qs);
  unsigned best = 0;
  int best_column = INT_MAX;
  for (int first = 0; first < part.units(); first += C::UCAP) {
    const unsigned k = min(static_cast<unsigned>(C::UCAP), static_cast<unsigned>(part.units() - first));
    const int end = first + static_cast<int>(static_cast<unsigned>(w + 1) * k / C::R);
    for (int u = first + static_cast<int>(static_cast<unsigned>(w) * k / C::R); u < end; ++u) {
      const int vector = u * kUnitVectors + lane;
      if (vector < part.vectors) {
        const uint4 q = LoadShared16(slot.data() + (vector - first * kUnitVectors) * 16);
        // Elements beyond the row's columns may be anything, but then another column reaches `largest`, too.
        const bool reaches = fmaxf(WordMax<T>(VectorMax<T>(q, q.x)), -WordMin<T>(VectorMin<T>(q, q.x))) >= largest;
        if (!reaches && largest < INFINITY) continue;
        const uint32_t* word = &q.x;
        for (int i = 0; i < kElements; ++i) {
          const int column = part.column + vector * kElements + i;
          const unsigned bits = __float_as_uint(E::Get(word[i / E::kPerWord], i % E::kPerWord)) & 0x7fffffffu;
          const bool counts = static_cast<unsigned>(column) < static_cast<unsigned>(vocab) && column != part.target && bits < 0x7f800000u;
          if (counts && (bits > best || (bits == best && column < best_column))) {  // columns rise but for the first of all
            best = bits;
            best_column = column;
          }
        }
      }
    }
    slot.Next();
  }
  const unsigned most = __reduce_max_sync(~0u, best);
  const unsigned column = __reduce_min_sync(~0u, best == most ? static_cast<unsigned>(best_column) : static_cast<unsigned>(INT_MAX));
  return make_uint2(most, column);
}

template <class C>
__device__ __forceinline__ void RunReducer(uint32_t base, const CrossEntropyLaunch& a, const CtaTally* tally, int rank, int w, int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  SlotCursor<C> slot(base);
  for (QueueCursor<C> q;; q.Next()) {
    BarrierWait(base + C::PFULL + q.qs * 8, q.phase);
    const RowPart part = LoadPart<C>(base, q.qs);
    if (part.row < 0) break;
    const SlotCursor<C> row_begin = slot;
    Reduction<T, C::SIGNALS> r(SlopesOf<C>(a));
    for (int first = 0; first < part.units(); first += C::UCAP) {
      const uint32_t data = slot.data() + lane * 16;
      BarrierWait(slot.full(), slot.phase);
      ForShare<C, C::R>(
          part, first, w, false,
          [&](auto n, int u) {
            TakeUnits<C, decltype(n)::value>(&r, data + (u - first) * kUnitBytes);
            if (C::SIGNALS && u + decltype(n)::value <= part.target_unit) r.max_before = r.packed_max;
          },
          [&](int u) {
            const int vector = u * kUnitVectors + lane;
            const bool valid = vector < part.vectors;
            uint4 v = make_uint4(0u, 0u, 0u, 0u);
            if (valid) v = LoadShared16(data + (u - first) * kUnitBytes);
            __syncwarp();
            r.TakeSome(v, part.column + vector * kElements, a.vocab_size, part.target, valid, C::SMOOTHING);
          });
      slot.Next();
    }
    const float max = WarpMax(r.max());
    const float sum = WarpSum(r.Sum() * Exp2((r.max() - max) * SlopesOf<C>(a).exact));
    uint32_t abs_word = 0u;
    unsigned column = INT_MAX;
    bool found = false;
    if constexpr (C::SIGNALS) {
      abs_word = __reduce_max_sync(~0u, __float_as_uint(r.LargestMagnitude()) & 0x7fffffffu);
      // Equal values count: the lowest position decides, and rows come in any order.
      found = abs_word >= LargestSoFar(tally);
      if (found) {
        const uint2 l = FindLargest<C>(row_begin, q.qs, w, lane, a.vocab_size, __uint_as_float(abs_word));
        abs_word = l.x;
        column = l.y;
      }
      if (__any_sync(~0u, WordMax<T>(r.max_before) >= part.z_target)) abs_word |= kTieBefore;
    }
    const float z_sum = C::SMOOTHING ? WarpSum(r.z_sum.Share(lane)) : 0.f;
    const uint32_t to = base + C::PARTIAL + (q.qs * C::CL * C::R + rank * C::R + w) * kPartialBytes, barrier = base + C::SFULL + q.qs * 8;
    const uint32_t m = __float_as_uint(max), s = __float_as_uint(sum), z = __float_as_uint(z_sum);
    if (lane < C::CL) {
      if (lane == rank) {
        StoreShared16(to, m, s, abs_word, z);
        if (found && lane == 0) StoreShared4(to + 16, column);
        BarrierArrive(barrier);
      } else if constexpr (C::CL > 1) {
        const bool with_column = found && lane == 0;  // only the leader's bookkeeper needs it
        if constexpr (kForRacecheck) {
          StoreRemotePlain16(to, lane, m, s, abs_word, z);
          if (with_column) StoreRemote4(to + 16, lane, column);
          BarrierReleaseRemote(barrier, lane);
        } else {
          BarrierArriveExpectRemote(barrier, lane, with_column ? 32 : 16);
          StoreRemote16(to, barrier, lane, m, s, abs_word, z);
          if (with_column) StoreRemote16(to + 16, barrier, lane, column, 0u, 0u, 0u);
        }
      }
    }
    __syncwarp();
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_REDUCE_CUH_
