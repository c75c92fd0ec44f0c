// The service warps of the ring kernel: scheduler and producer.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_SERVICE_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_SERVICE_CUH_

#include "kernels/cuda/ring_zero.cuh"

namespace lossgauge::cuda {

// Takes rows by ticket, so that faster SMs take more (they differ by 3 to 5 %): one by one, so that all clusters work on neighbouring rows, but in batches
// where rows are short or the last ones were masked, for which a ticket, a target and a target's logit one behind the other would take too long.
template <class C>
struct Scheduler {
  static constexpr int kLargestBatch = 8;
  const CrossEntropyLaunch& a;
  const uint32_t base;
  const int lane, cluster, clusters;
  QueueCursor<C> q;
  unsigned tokens = 0, unmasked = 0, bad = 0;
  Word mask_fingerprint = 0, target_fingerprint = 0;

  __device__ __forceinline__ void Push(int row, int target, float z_target, float scale) {
    if (lane == 0) {
      BarrierWait(base + C::SEMPTY + q.qs * 8, q.phase ^ 1);
      const uint32_t to = base + C::QUEUE + q.qs * 16, barrier = base + C::QFULL + q.qs * 8;
      const uint32_t z = __float_as_uint(z_target), s = __float_as_uint(scale);
      if constexpr (C::CL == 1) {
        StoreShared16(to, row, target, z, s);
        BarrierArrive(barrier);
      } else {
        for (int c = 0; c < C::CL; ++c) {
          BarrierArriveExpectRemote(barrier, c, 16);
          StoreRemote16(to, barrier, c, row, target, z, s);
        }
      }
    }
    q.Next();
  }

  // Rows [first, first + count), one a lane.
  int first, count;
  bool mine, in_u;
  long long target;
  float z_target, scale;
  __device__ __forceinline__ void Fetch() {
    const long long row = first + lane;
    mine = lane < count && row < a.rows;
    target = mine ? ReadTarget(a, row) : a.ignore_index;
    in_u = mine && IsUnmasked(a, target);
    z_target = 0.f;
    scale = 1.f;
    if (in_u) {
      z_target = Element<typename C::T>::Load(a.logits + row * a.row_stride_bytes + target * Element<typename C::T>::kBytes);
      scale = ReadScale(a, row);
    }
  }
  // Needs no ticket, and no barriers yet.
  __device__ __forceinline__ void FetchFirst() {
    first = cluster;
    count = 1;
    Fetch();
  }

  __device__ __forceinline__ void Run(CtaTally* tally) {
    const int rows = static_cast<int>(a.rows);
    const bool short_rows = a.vocab_size * Element<typename C::T>::kBytes < (48 << 10);
    while (first < rows) {
      const int taken = min(count, rows - first);
      for (int i = 0; i < taken; ++i) {
        const bool unmasked_row = __shfl_sync(~0u, in_u, i);
        const int r = first + i;
        unsigned char* const grad = a.grad == nullptr ? nullptr : a.grad + r * a.grad_stride_bytes;
        if (unmasked_row) {
          Push(r, static_cast<int>(__shfl_sync(~0u, target, i)), __shfl_sync(~0u, z_target, i), __shfl_sync(~0u, scale, i));
          if (grad != nullptr && a.columns > a.vocab_size)
            ZeroSpan<C>(base, grad + static_cast<long long>(a.vocab_size) * Element<typename C::T>::kBytes, a.columns - a.vocab_size, lane);
        } else if (C::CL == 1 && grad != nullptr) {
          ZeroSpan<C>(base, grad, a.columns, lane);
        }
      }
      // Once the rows are on their way.
      const int row = first + lane;
      if (in_u) {
        ++unmasked;
        if constexpr (C::SIGNALS) {
          target_fingerprint += lg_target_hash(target);
          mask_fingerprint += lg_position_hash(ReadPosition(a, row), target);
        }
      } else if (mine) {
        bad += target != a.ignore_index;
        if (a.losses != nullptr) a.losses[row] = 0.f;
        if (a.log_z != nullptr) a.log_z[row] = 0.f;
      }
      tokens += mine;
      const bool quick = short_rows || __any_sync(~0u, mine && !in_u);
      count = quick ? min(max((rows - first) / (clusters * 4), 1), min(2 * count, kLargestBatch)) : 1;
      int ticket = 0;
      if (lane == 0) ticket = static_cast<int>(atomicAdd(&a.scratch->next_ticket, static_cast<unsigned>(count)));
      first = __shfl_sync(~0u, ticket, 0) + clusters;
      Fetch();
    }
    Flush(tally);  // before the bookkeeper can learn of the end
    Push(-1, 0, 0.f, 0.f);
    BulkWaitAll();
  }

  __device__ __forceinline__ void Flush(CtaTally* tally) {
    tokens = __reduce_add_sync(~0u, tokens);
    unmasked = __reduce_add_sync(~0u, unmasked);
    bad = __reduce_add_sync(~0u, bad);
    if constexpr (C::SIGNALS) {
      mask_fingerprint = WarpSum(mask_fingerprint);
      target_fingerprint = WarpSum(target_fingerprint);
    }
    if (lane != 0) return;
    tally->counts[kTokens] = tokens;
    tally->counts[kUnmaskedTokens] = unmasked;
    tally->counts[kBadTargets] = bad;
    tally->counts[kMaskFingerprint] = mask_fingerprint;
    tally->counts[kTargetFingerprint] = target_fingerprint;
  }
};

// Copies the CTA's part of each row into the ring. Bulk copies move whole 16-byte vectors; where the outermost vectors of a row would reach beyond the
// caller's tensor, their elements are loaded one by one instead.
template <class C>
__device__ __forceinline__ void RunProducer(uint32_t base, const CrossEntropyLaunch& a, int rank, int lane) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  const unsigned long long row_bytes = static_cast<unsigned long long>(a.columns) * E::kBytes;
  const bool dense = static_cast<unsigned long long>(a.row_stride_bytes) == row_bytes;
  const unsigned long long begin = reinterpret_cast<unsigned long long>(a.logits);
  const unsigned long long end = begin + (a.rows - 1) * a.row_stride_bytes + row_bytes;
  SlotCursor<C> slot(base);
  for (QueueCursor<C> q;; q.Next()) {
    const QueueEntry e = WaitForRow(base, q);
    const RowPart part = MakeRowPart<C>(a, e.row, e.target, e.z_target, rank);
    if (lane == 0) {
      StorePart<C>(base, q.qs, part);
      BarrierArrive(base + C::PFULL + q.qs * 8);
    }
    if (e.row < 0) break;
    const unsigned long long row_begin = begin + e.row * a.row_stride_bytes;
    // Vectors before the row's first column are never needed.
    const int skip = part.column < 0 ? -part.column / kElements : 0;
    // Between rows of a dense tensor lie only the tensor's own bytes.
    const bool patch_head = part.column < 0 && ((row_begin & ~15ull) < (dense ? begin : row_begin));
    const unsigned long long part_end = part.base + 16ull * part.vectors;
    const bool patch_tail = part.vectors > 0 && part_end > (dense ? end : row_begin + row_bytes);
    const auto patch = [&](int vector, uint32_t to, int from_lane) {
      const int i = lane - from_lane;
      const int column = part.column + vector * kElements + i;
      if (i >= 0 && i < kElements && static_cast<unsigned>(column) < static_cast<unsigned>(a.vocab_size)) {
        const unsigned char* from = reinterpret_cast<const unsigned char*>(row_begin) + static_cast<long long>(column) * E::kBytes;
        if constexpr (E::kBytes == 2)
          asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(*reinterpret_cast<const unsigned short*>(from)) : "memory");
        else StoreShared4(to + i * 4, *reinterpret_cast<const uint32_t*>(from));
      }
    };
    constexpr int step = C::UCAP * kUnitVectors;
    for (int v0 = 0; v0 < part.vectors; v0 += step) {
      const int v1 = min(v0 + step, part.vectors);
      int from = v0 == 0 ? skip : v0, to = v1;
      if (lane == 0) BarrierWait(slot.empty(), slot.phase ^ 1);
      __syncwarp();
      const bool head = patch_head && v0 == 0, tail = patch_tail && v1 == part.vectors;
      if (head || tail) {
        if (head) patch(from, slot.data() + (from - v0) * 16, 0);
        if (tail && !(head && to - 1 == from)) patch(to - 1, slot.data() + (to - 1 - v0) * 16, 16);
        if (head) ++from;
        if (tail) --to;
        __syncwarp();
      }
      if (lane == 0) {
        if (to > from) {
          BarrierArriveExpect(slot.full(), (to - from) * 16);
          BulkLoad(slot.data() + (from - v0) * 16, reinterpret_cast<const void*>(part.base + 16ull * from), (to - from) * 16, slot.full());
        } else {
          BarrierArrive(slot.full());
        }
      } else if (kForRacecheck) {
        BarrierArrive(slot.full());  // of elements that this lane may have stored
      }
      slot.Next();
    }
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_SERVICE_CUH_
