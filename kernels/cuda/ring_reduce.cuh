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
// wait for this warp's result. Called for few rows: those that reach the CTA's largest so far, and those with -inf columns.
template <class C>
__device__ __noinline__ uint2 FindLargest(SlotCursor<C> slot, RowPart part, int units_per_chunk, int w, int lane, int vocab, int target) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  unsigned best = 0;
  int best_column = INT_MAX;
  for (int u0 = 0; u0 < part.units; u0 += units_per_chunk) {
    const int k = min(units_per_chunk, part.units - u0);
    for (int u = u0 + w * k / C::R; u < u0 + (w + 1) * k / C::R; ++u) {
      const int vector = u * kUnitVectors + lane;
      if (vector < part.vectors) {
        const uint4 q = LoadShared16(slot.data + (vector - u0 * kUnitVectors) * 16);
        const uint32_t* word = &q.x;
        for (int i = 0; i < kElements; ++i) {
          const int column = part.column + vector * kElements + i;
          const unsigned bits = __float_as_uint(E::Get(word[i / E::kPerWord], i % E::kPerWord)) & 0x7fffffffu;
          const bool counts = static_cast<unsigned>(column) < static_cast<unsigned>(vocab) && column != target && bits < 0x7f800000u;
          if (counts && bits > best) {  // columns rise, so a tie keeps the lower one
            best = bits;
            best_column = column;
          }
          if (counts && bits == 0 && best == 0 && column < best_column) best_column = column;
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
__device__ __forceinline__ void RunReducer(uint32_t base, const CrossEntropyLaunch& a, const CtaTally* tally, int units_per_chunk, int rank, int w,
                                           int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  SlotCursor<C> slot(base);
  for (QueueCursor<C> q;; q.Next()) {
    const QueueEntry e = WaitForRow(base, q);
    if (e.row < 0) break;
    const RowPart part = MakeRowPart<C>(a.logits, a.row_stride_bytes, e.row, e.target, a.vocab_size, rank);
    const SlotCursor<C> row_begin = slot;
    Reduction<T, C::SIGNALS> r;
    for (int u0 = 0; u0 < part.units; u0 += units_per_chunk) {
      const int k = min(units_per_chunk, part.units - u0);
      int u = u0 + w * k / C::R;
      const int end = u0 + (w + 1) * k / C::R;
      uint32_t p = slot.data + (u - u0) * kUnitBytes + lane * 16;
      const bool special = InRange(part.target_unit, u, end) | InRange(part.first_special, u, end) | InRange(part.last_special, u, end);
      BarrierWait(slot.full, slot.phase);
      __syncwarp();
      if (!special) {
        const bool before = end <= part.target_unit;
        for (; u + C::BODY <= end; u += C::BODY, p += C::BODY * kUnitBytes) TakeUnits<C, C::BODY>(&r, p);
        for (; u + 2 <= end; u += 2, p += 2 * kUnitBytes) TakeUnits<C, 2>(&r, p);
        if (u < end) TakeUnits<C, 1>(&r, p);
        if (C::SIGNALS && before) r.max_before = r.packed_max;
      } else {
        for (; u < end; ++u, p += kUnitBytes) {
          if (u == part.target_unit || u == part.first_special || u == part.last_special) {
            const int vector = u * kUnitVectors + lane;
            const bool valid = vector < part.vectors;
            uint4 v = make_uint4(0u, 0u, 0u, 0u);
            if (valid) v = LoadShared16(p);
            __syncwarp();
            r.TakeSome(v, part.column + vector * kElements, a.vocab_size, e.target, valid, C::SMOOTHING);
          } else {
            TakeUnits<C, 1>(&r, p);
          }
          if (C::SIGNALS && u < part.target_unit) r.max_before = r.packed_max;
        }
      }
      slot.Next();
    }
    const float max = WarpMax(r.max());
    const float sum = WarpSum(r.Sum() * Exp2((r.max() - max) * kLog2E));
    uint32_t abs_word = 0u;
    unsigned column = INT_MAX;
    bool found = false;
    if constexpr (C::SIGNALS) {
      abs_word = __reduce_max_sync(~0u, __float_as_uint(r.LargestMagnitude()) & 0x7fffffffu);
      // Equal values count: the lowest position decides, and rows come in any order.
      found = abs_word >= *static_cast<const volatile unsigned*>(&tally->best_abs);
      if (found) {
        const uint2 l = FindLargest<C>(row_begin, part, units_per_chunk, w, lane, a.vocab_size, e.target);
        abs_word = l.x;
        column = l.y;
      }
      if (WarpMax(WordMax<T>(r.max_before)) >= e.z_target) abs_word |= kTieBefore;
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
        BarrierArriveExpectRemote(barrier, lane, with_column ? 32 : 16);
        StoreRemote16(to, barrier, lane, m, s, abs_word, z);
        if (with_column) StoreRemote16(to + 16, barrier, lane, column, 0u, 0u, 0u);
      }
    }
    __syncwarp();
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_REDUCE_CUH_
