// Long rows of the vocabulary-parallel loss: what is on its way from memory does not depend on registers. One CTA a
// multiprocessor; a row at a time streams through a ring of slots in shared memory, and rows follow each other without a stop.
// Warps:
//
//   feeder        copies the CTA's rows into the slots
//   keeper        what belongs to a row as a whole, which is double and 64-bit arithmetic: 32 rows at a time, one a lane
//   sweeper x G   a share of each slot each; nobody waits for the others at the end of a row: each leaves what it has found in
//   the row's place of the batch
//
// Rows go to CTAs in static turns, 32 of a CTA are a batch; two batches have places (`half`). Barriers, each an mbarrier with
// the arrivals it waits for:
//   FULL[slot]   1 + bytes  feeder: the slot's bytes have landed
//   EMPTY[slot]  G          sweepers: the slot has been read for the last time
//   READY[half]  1          keeper: the batch's places may be used; in the second kernel its rows are merged
//   DONE[half]   G          sweepers: what they have found in the batch's rows is in its places
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_RING_LAYOUT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_RING_LAYOUT_CUH_

#include "kernels/cuda/ring_layout.cuh"
#include "kernels/cuda/shard_rows.cuh"

namespace lossgauge::cuda {

constexpr int kBatchRows = 32;

// G: sweepers. UCAP: units of a slot. NBUF: slots. CTAS: of a multiprocessor.
template <class T_, int G_, int UCAP_, int NBUF_, bool SIGNALS_, int CTAS_ = 1>
struct ShardRing : RowsConfig<T_, G_, 0, 1, SIGNALS_, LogitMap::kNone> {
  static constexpr int CL = 1, G = G_, UCAP = UCAP_, NBUF = NBUF_, CTAS = CTAS_;
  static constexpr int kServiceWarps = 2, THREADS = (kServiceWarps + G) * 32;
  static constexpr int BODY = 4;  // vectors a lane holds at once
  static constexpr uint32_t SLOT = UCAP * kUnitBytes;
  // Two partial results of four words and of one word: of each batch, row and sweeper.
  static constexpr uint32_t FULL = 0, EMPTY = FULL + NBUF * 8, READY = EMPTY + NBUF * 8, DONE = READY + 16, RING = (DONE + 16 + 127) / 128 * 128,
                            FOUND = RING + NBUF * SLOT, FOUND_TOO = FOUND + 2 * kBatchRows * G * 16, BEGIN_BYTES = FOUND_TOO + 2 * kBatchRows * G * 4,
                            FINISH_BYTES = FOUND + (SIGNALS_ ? 2 * kBatchRows * G * 8 : 0);
};

// The rows of a CTA: first, first + step, ...
struct Turns {
  long long first, step;
  int count;
  __device__ __forceinline__ long long Row(int turn) const { return first + turn * step; }
  __device__ __forceinline__ int Batch(int turn) const { return min(kBatchRows, count - turn); }
};
// Backwards: the last rows first.
__device__ __forceinline__ Turns TurnsOf(long long rows, bool backwards) {
  const long long first = blockIdx.x, step = gridDim.x;
  const int count = first < rows ? static_cast<int>((rows - 1 - first) / step) + 1 : 0;
  return backwards ? Turns{rows - 1 - first, -step, count} : Turns{first, step, count};
}

// Batches in turn.
struct HalfCursor {
  int half = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    half ^= 1;
    if (half == 0) phase ^= 1;
  }
};

template <class C>
__device__ __forceinline__ void SetUpShardRing(uint32_t base) {
  for (int i = 0; i < C::NBUF; ++i) {
    BarrierInit(base + C::FULL + i * 8, kWarpArrivals);
    BarrierInit(base + C::EMPTY + i * 8, C::G * kWarpArrivals);
  }
  for (int i = 0; i < 2; ++i) {
    BarrierInit(base + C::READY + i * 8, kWarpArrivals);
    BarrierInit(base + C::DONE + i * 8, C::G * kWarpArrivals);
  }
  BarrierInitFence();
}
// What all lanes have read or written is handed on. See kWarpArrivals.
__device__ __forceinline__ void ArriveTogether(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0 || kForRacecheck) BarrierArrive(barrier);
}

// Calls each(column, logit or gradient at it) for a sweeper's columns of a row at `memory` (of its vector 0), which it reads
// again. For few rows.
template <class C, class Each>
__device__ __forceinline__ void ReadAgain(const RowPart& part, unsigned long long memory, int w, int lane, int vocab, const Each& each) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  for (int first = 0; first < part.units(); first += C::UCAP) {
    const unsigned k = min(static_cast<unsigned>(C::UCAP), static_cast<unsigned>(part.units() - first));
    const int end = first + static_cast<int>(static_cast<unsigned>(w + 1) * k / C::G);
    for (int u = first + static_cast<int>(static_cast<unsigned>(w) * k / C::G); u < end; ++u) {
      const int vector = u * kUnitVectors + lane;
      for (int i = 0; vector < part.vectors && i < kElements; ++i) {
        const int column = part.column + vector * kElements + i;
        if (static_cast<unsigned>(column) >= static_cast<unsigned>(vocab)) continue;
        each(column, E::Load(reinterpret_cast<const unsigned char*>(memory) + vector * 16ll + i * E::kBytes));
      }
    }
  }
}

// The feeder's place in its rows. Bulk copies move whole 16-byte vectors; where the outermost vectors of a row would reach
// beyond the caller's tensor, their elements are loaded one by one instead. Masked rows are not read.
template <class C>
struct RowFeed {
  using E = Element<typename C::T>;
  static constexpr int kElements = kVectorElements<typename C::T>;
  const ShardLaunch& a;
  const uint32_t base;
  const Turns turns;
  const int lane;
  SlotCursor<C> slot;
  RowPart part;
  unsigned live = 0;
  int turn = 0, done = 0;  // vectors of the row that are on their way
  bool patch_head = false, patch_tail = false;

  __device__ __forceinline__ RowFeed(const ShardLaunch& launch, uint32_t shared, const Turns& of, int l)
      : a(launch), base(shared), turns(of), lane(l), slot(shared) {
    part.vectors = 0;
  }

  __device__ __forceinline__ bool NextRow() {
    for (;;) {
      if (turn == turns.count) return false;
      if ((turn & 31) == 0) live = __ballot_sync(~0u, turn + lane < turns.count && IsLive(a, ReadTarget(a.loss, turns.Row(turn + lane))));
      const bool loaded = (live >> (turn & 31) & 1) != 0;
      ++turn;
      if (loaded) break;
    }
    const long long row = turns.Row(turn - 1);
    const unsigned long long row_bytes = static_cast<unsigned long long>(a.loss.columns) * E::kBytes;
    // Between rows of a dense tensor lie only the tensor's own bytes.
    const bool dense = static_cast<unsigned long long>(a.loss.row_stride_bytes) == row_bytes;
    const unsigned long long begin = reinterpret_cast<unsigned long long>(a.loss.logits), end = begin + (a.loss.rows - 1) * a.loss.row_stride_bytes + row_bytes;
    const unsigned long long row_begin = begin + row * a.loss.row_stride_bytes;
    part = MakeRowPart<C>(a.loss, static_cast<int>(row), kNoTarget, 0.f, 0);
    patch_head = part.column < 0 && ((row_begin & ~15ull) < (dense ? begin : row_begin));
    patch_tail = part.base + 16ull * part.vectors > (dense ? end : row_begin + row_bytes);
    done = 0;
    return true;
  }
  __device__ __forceinline__ void Patch(int vector, uint32_t to, int from_lane) const {
    const int i = lane - from_lane, column = part.column + vector * kElements + i;
    if (i < 0 || i >= kElements || static_cast<unsigned>(column) >= static_cast<unsigned>(a.loss.vocab_size)) return;
    const unsigned char* const from = reinterpret_cast<const unsigned char*>(part.base) + vector * 16ll + i * E::kBytes;
    if constexpr (E::kBytes == 2)
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(*reinterpret_cast<const unsigned short*>(from)) : "memory");
    else
      StoreShared4(to + i * 4, *reinterpret_cast<const uint32_t*>(from));
  }
  // At most so many slots.
  __device__ __forceinline__ void Fill(int slots) {
    for (; slots > 0; --slots, slot.Next()) {
      while (done >= part.vectors) {
        if (!NextRow()) return;
      }
      const int v0 = done, v1 = min(v0 + C::UCAP * kUnitVectors, part.vectors);
      // Vectors before the row's first column are never needed.
      int from = v0 == 0 && part.column < 0 ? -part.column / kElements : v0, to = v1;
      if (lane == 0) BarrierWait(slot.empty(), slot.phase ^ 1);
      __syncwarp();
      const bool head = patch_head && v0 == 0, tail = patch_tail && v1 == part.vectors;
      if (head || tail) {
        if (head) Patch(from, slot.data() + (from - v0) * 16, 0);
        if (tail && !(head && to - 1 == from)) Patch(to - 1, slot.data() + (to - 1 - v0) * 16, 16);
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
        BarrierArrive(slot.full());
      }
      done = v1;
    }
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_RING_LAYOUT_CUH_
