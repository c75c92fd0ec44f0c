// The ring kernel: forward and gradient of rows that fit on chip, each logit read once from memory, each gradient written once.
//
// A cluster of CTAs owns a row at a time. The row's bytes stream once through a ring of slots in the shared memory of its CTAs; nothing of the row is
// kept anywhere else, and no probability is ever stored. Warps are specialised:
//
//   scheduler (leader CTA)  takes rows by ticket, reads target and target logit, queues them to all CTAs; ends the launch's loss (launch_end.cuh)
//   producer                works out the CTA's part of the row for all its warps and copies it into ring slots
//   reducer x R             running maximum and sum of exponentials of the part, then one partial result a warp to every CTA of the cluster
//   combiner                merges the partial results into the constants of the row's gradient; the leader's hands the row to the bookkeeper
//   gradient x G            reads the same slots again, writes the gradient, frees the slots
//   bookkeeper (leader CTA) loss and signals, 32 rows at a time, off the critical path
//
// Masked rows are never read. Their gradients are zeroed by the scheduler in a cluster of one, else by the same warp of the other CTAs and by whole CTAs
// once the rows are through (ring_zero.cuh).
//
// Barriers, each an mbarrier with the arrivals it waits for. `slot` is a slot of the ring (NBUF), `qs` one of the queue of rows (NS):
//   FULL[slot]    1 + bytes     producer: the slot's bytes have landed
//   EMPTY[slot]   G             gradient warps: the slot has been read for the last time (reducers read it before: READY follows their results)
//   QFULL[qs]     1 (+ bytes)   scheduler: a row stands in the queue
//   PFULL[qs]     1             producer: the CTA's part of the row is described
//   SFULL[qs]     CL * R        reducers: all partial results of the row are here
//   READY[qs]     1             combiner: the row's constants are here, or it is the end
//   SEMPTY[qs]    CL * (G + 1)  at the leader: gradient warps and combiners have taken what they need of entry qs
//   BOOKFULL[half]   32  at the leader, combiner: a row each
//   MASSFULL[half]   32 * CL * G (+ bytes)  at the leader, gradient warps: their share of a row's mass
//   BOOKEMPTY[half]  1   bookkeeper: the half's rows are in its registers
//   STARTED          1   combiner, once: the first row is through
// compute-sanitizer's racecheck reports, in clusters, the combiner's reads of partial results against the reducers' stores of them. They are ordered by
// SFULL: each of the CL * R reducers arrives on it after its store (local ones by a release behind a plain store, remote ones with bytes that the barrier
// counts), and the combiner reads after the phase is complete. They are overwritten only after SEMPTY, on which the combiner arrives after its reads.
// It also reports two hints that nothing orders and that may come late or never: CtaTally::best_abs (a reducer looks for a place in vain) and NOZEROS
// (a warp asks once more for a masked row). Built with LOSSGAUGE_RACECHECK, for racecheck to follow, partial results go by plain stores, a release and
// an acquire at cluster scope, and hints stay in their CTA.
// A reducer or producer needs no arrival of its own on SEMPTY: a gradient warp passes READY only after all reducers of the row have delivered, and a
// reducer delivers only after the producer has read the entry and filled the slots.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_LAYOUT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_LAYOUT_CUH_

#include "kernels/cuda/device_counters.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch_end.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/sweep.cuh"

namespace lossgauge::cuda {

constexpr int kUnitVectors = 32;                    // a warp's step: one 16-byte vector a lane
constexpr int kUnitBytes = kUnitVectors * 16;
constexpr int kZeroPageBytes = 4096;                // source of bulk stores of zeros
constexpr int kPartBytes = 48, kConstantsBytes = 48;
constexpr int kPartialBytes = 32;                   // {max, sum, max|z| and tie flag, sum of z} {column of max|z|}
constexpr int kBookRows = 32, kBookBytes = 48;      // rows of half the book, bytes of a row in it

// CL: CTAs of a cluster. R, G: reducer and gradient warps. UCAP: units of a slot. NBUF: slots. NS: rows in the queue. SIGNALS, SMOOTHING, SCALED
// (a logit scale): compiled in or out.
template <class T_, int CL_, int R_, int G_, int UCAP_, int NBUF_, int NS_, bool SIGNALS_, bool SMOOTHING_, bool SCALED_>
struct RingConfig {
  using T = T_;
  static constexpr int CL = CL_, R = R_, G = G_, UCAP = UCAP_, NBUF = NBUF_, NS = NS_;
  static constexpr bool SIGNALS = SIGNALS_, SMOOTHING = SMOOTHING_, SCALED = SCALED_;
  static constexpr int kServiceWarps = 4;
  static constexpr int THREADS = (kServiceWarps + R + G) * 32;
  static constexpr int BODY = 4;  // vectors a lane keeps in flight
  static constexpr uint32_t SLOT = UCAP * kUnitBytes;
  // The ring does not begin at 0: ptxas 13.0 was seen to take a slot's address for the base register where the two start out equal, and to store partial
  // results four slots too far.
  static constexpr uint32_t ZERO = 0, RING = ZERO + kZeroPageBytes, PARTIAL = RING + NBUF * SLOT, CONSTANTS = PARTIAL + NS * CL * R * kPartialBytes,
                            QUEUE = CONSTANTS + NS * kConstantsBytes, PARTS = QUEUE + NS * 16, BOOK = PARTS + NS * kPartBytes,
                            TALLY = BOOK + 2 * kBookRows * kBookBytes, GRAD_TALLY = TALLY + sizeof(CtaTally), REHEARSAL = GRAD_TALLY + sizeof(CtaTally),
                            MASS = REHEARSAL + sizeof(EndRehearsal), FULL = MASS + (SIGNALS ? 2 * kBookRows * CL * G * 4 : 0), EMPTY = FULL + NBUF * 8,
                            QFULL = EMPTY + NBUF * 8, PFULL = QFULL + NS * 8, SFULL = PFULL + NS * 8, READY = SFULL + NS * 8, SEMPTY = READY + NS * 8,
                            BOOKFULL = SEMPTY + NS * 8, BOOKEMPTY = BOOKFULL + 16, MASSFULL = BOOKEMPTY + 16,
                            STARTED = MASSFULL + 16,
                            NOZEROS = STARTED + 8,    // 1 once a warp of the cluster has found no masked row left
                            ZEROROW = NOZEROS + 4,    // two: rows that the CTA zeroes together
                            BYTES = ZEROROW + 12;
  static_assert(CL * R <= 32, "one lane of the combiner for each partial result");
  static_assert(BYTES <= 227 * 1024, "shared memory of a CTA");
};

// A CTA's part of a row, in units. Vector 0 begins at a multiple of 128 bytes at or before the row, so that a warp's store never splits a line.
struct RowPart {
  int row;  // -1 = no more
  int target;
  float z_target;
  int vectors;
  int column;       // of vector 0's first element; negative before the row's begin
  int target_unit;  // may lie outside of the part
  int first_special, last_special;  // units that reach beyond the row's columns; -1 = none
  unsigned long long base;  // address of vector 0
  unsigned long long grad;  // of its gradient
  __device__ __forceinline__ int units() const { return static_cast<int>((static_cast<unsigned>(vectors) + kUnitVectors - 1) / kUnitVectors); }
  // Units from u on before the first that holds the target or reaches beyond the row's columns.
  __device__ __forceinline__ unsigned ToSpecial(int u) const {
    return min(min(static_cast<unsigned>(target_unit - u), static_cast<unsigned>(first_special - u)), static_cast<unsigned>(last_special - u));
  }
};

template <class C>
__device__ __forceinline__ RowPart MakeRowPart(const CrossEntropyLaunch& a, int row, int target, float z_target, int rank) {
  constexpr int kBytes = Element<typename C::T>::kBytes, kElements = kVectorElements<typename C::T>;
  RowPart p;
  p.row = row;
  p.target = target;
  p.z_target = z_target;
  const unsigned long long address = reinterpret_cast<unsigned long long>(a.logits) + static_cast<unsigned long long>(row) * a.row_stride_bytes;
  const int head = static_cast<int>(address & 127) / kBytes;
  const int all = (head + a.vocab_size + kElements - 1) / kElements;
  const int per = C::CL == 1 ? all : ((all + C::CL - 1) / C::CL + kUnitVectors - 1) & ~(kUnitVectors - 1);
  const int first = min(all, rank * per);
  p.vectors = min(per, all - first);
  p.column = first * kElements - head;
  p.target_unit = ((target + head) / kElements - first) >> 5;
  p.first_special = p.column < 0 ? 0 : -1;
  p.last_special = (p.vectors & (kUnitVectors - 1)) || p.column + p.vectors * kElements > a.vocab_size ? p.units() - 1 : -1;
  p.base = (address & ~127ull) + 16ull * first;
  p.grad = p.base + reinterpret_cast<unsigned long long>(a.grad) - reinterpret_cast<unsigned long long>(a.logits) +
           static_cast<unsigned long long>(row * (a.grad_stride_bytes - a.row_stride_bytes));
  return p;
}
template <class C>
__device__ __forceinline__ void StorePart(uint32_t base, int qs, const RowPart& p) {
  const uint32_t to = base + C::PARTS + qs * kPartBytes;
  StoreShared16(to, p.row, p.target, __float_as_uint(p.z_target), p.vectors);
  StoreShared16(to + 16, p.column, p.target_unit, p.first_special, p.last_special);
  StoreShared16(to + 32, static_cast<uint32_t>(p.base), static_cast<uint32_t>(p.base >> 32), static_cast<uint32_t>(p.grad),
                static_cast<uint32_t>(p.grad >> 32));
}
template <class C>
__device__ __forceinline__ RowPart LoadPart(uint32_t base, int qs) {
  const uint32_t from = base + C::PARTS + qs * kPartBytes;
  const uint4 x = LoadShared16(from), y = LoadShared16(from + 16), z = LoadShared16(from + 32);
  return {static_cast<int>(x.x), static_cast<int>(x.y), __uint_as_float(x.z), static_cast<int>(x.w), static_cast<int>(y.x), static_cast<int>(y.y),
          static_cast<int>(y.z), static_cast<int>(y.w), static_cast<unsigned long long>(z.y) << 32 | z.x, static_cast<unsigned long long>(z.w) << 32 | z.z};
}

// The bookkeeper has the losses of all rows; the scheduler, with nothing left to do, ends the loss while the last rows' gradients are written.
constexpr int kLossBarrier = 1, kZeroBarrier = 2;
__device__ __forceinline__ void ArriveForLoss() { asm volatile("bar.arrive %0, 64;" ::"n"(kLossBarrier) : "memory"); }
__device__ __forceinline__ void WaitForLoss() { asm volatile("bar.sync %0, 64;" ::"n"(kLossBarrier) : "memory"); }

template <int N>
struct Units {
  static constexpr int value = N;
};

// A warp's share of the slot that holds units [first, first + UCAP) of a row: calls whole(Units<N>, u) for N units of nothing but columns other than the
// target, special(u) for each other one; all = every unit is special. One copy of each: what does not fit the instruction cache stalls every warp.
template <class C, int WARPS, class Whole, class Special>
__device__ __forceinline__ void ForShare(const RowPart& part, int first, int w, bool all, const Whole& whole, const Special& special) {
  const unsigned k = min(static_cast<unsigned>(C::UCAP), static_cast<unsigned>(part.units() - first));
  int u = first + static_cast<int>(static_cast<unsigned>(w) * k / WARPS);
  const int end = first + static_cast<int>(static_cast<unsigned>(w + 1) * k / WARPS);
  const auto stop_from = [&](int from) { return all ? from : from + static_cast<int>(min(part.ToSpecial(from), static_cast<unsigned>(end - from))); };
  for (int stop = stop_from(u);; stop = stop_from(u)) {
    for (; u + C::BODY <= stop; u += C::BODY) whole(Units<C::BODY>(), u);
    if (u + 2 <= stop) {
      whole(Units<2>(), u);
      u += 2;
    }
    if (u < stop) {
      whole(Units<1>(), u);
      ++u;
    }
    if (u >= end) break;
    special(u);
    ++u;
  }
}

__device__ __forceinline__ bool InRange(int u, int begin, int end) { return static_cast<unsigned>(u - begin) < static_cast<unsigned>(end - begin); }

// The hint of CtaTally. As an atomic for racecheck, which then has nothing to say.
__device__ __forceinline__ unsigned LargestSoFar(const CtaTally* tally) {
  if constexpr (kForRacecheck) return atomicMax(const_cast<unsigned*>(&tally->best_abs), 0u);
  return *static_cast<const volatile unsigned*>(&tally->best_abs);
}

// A position in the ring.
template <class C>
struct SlotCursor {
  const uint32_t base;
  int slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ explicit SlotCursor(uint32_t shared) : base(shared) {}
  __device__ __forceinline__ uint32_t data() const { return base + C::RING + slot * C::SLOT; }
  __device__ __forceinline__ uint32_t full() const { return base + C::FULL + slot * 8; }
  __device__ __forceinline__ uint32_t empty() const { return base + C::EMPTY + slot * 8; }
  __device__ __forceinline__ void Next() {
    if (++slot == C::NBUF) {
      slot = 0;
      phase ^= 1;
    }
  }
};

template <class C>
struct QueueCursor {
  int qs = 0;
  uint32_t phase = 0;
  unsigned rows = 0;  // how many rows have passed
  __device__ __forceinline__ void Next() {
    ++rows;
    if (++qs == C::NS) {
      qs = 0;
      phase ^= 1;
    }
  }
};

struct QueueEntry {
  int row;  // -1 = no more
  int target;
  float z_target;
  float scale;  // upstream * grad_scale
};
template <class C>
__device__ __forceinline__ QueueEntry WaitForRow(uint32_t base, const QueueCursor<C>& q) {
  BarrierWait(base + C::QFULL + q.qs * 8, q.phase);
  const uint4 w = LoadShared16(base + C::QUEUE + q.qs * 16);
  return {static_cast<int>(w.x), static_cast<int>(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
}
// What all lanes have read or written is handed on by one lane's arrival behind __syncwarp. racecheck does not follow that: for it, each lane arrives by itself.
constexpr unsigned kWarpArrivals = kForRacecheck ? 32 : 1;
template <class C>
__device__ __forceinline__ void EntryTaken(uint32_t base, int qs) {
  if constexpr (C::CL == 1) BarrierArrive(base + C::SEMPTY + qs * 8);
  else BarrierArriveRemote(base + C::SEMPTY + qs * 8, 0);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_LAYOUT_CUH_
