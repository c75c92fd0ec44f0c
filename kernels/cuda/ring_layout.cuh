// The ring kernel: forward and gradient of rows that fit on chip, each logit read once from memory, each gradient written once.
//
// A cluster of CTAs owns a row at a time. The row's bytes stream once through a ring of slots in the shared memory of its CTAs; nothing of the row is
// kept anywhere else, and no probability is ever stored. Warps are specialised:
//
//   scheduler (leader CTA)  takes rows by ticket, reads target and target logit, queues them to all CTAs; zeroes masked rows itself
//   producer                copies the CTA's part of the row into ring slots
//   reducer x R             running maximum and sum of exponentials of the part, then one partial result a warp to every CTA of the cluster
//   combiner                merges the partial results into the constants of the row's gradient; the leader's hands the row to the bookkeeper
//   gradient x G            reads the same slots again, writes the gradient, frees the slots
//   bookkeeper (leader CTA) loss and signals, 32 rows at a time, off the critical path
//
// Barriers, each an mbarrier with the arrivals it waits for. `slot` is a slot of the ring (NBUF), `qs` one of the queue of rows (NS):
//   FULL[slot]    1 + bytes     producer: the slot's bytes have landed
//   EMPTY[slot]   G             gradient warps: the slot has been read for the last time (reducers read it before: READY follows their results)
//   QFULL[qs]     1 (+ bytes)   scheduler: a row stands in the queue
//   SFULL[qs]     CL * R        reducers: all partial results of the row are here
//   READY[qs]     1             combiner: the row's constants are here
//   SEMPTY[qs]    CL * (G + 1)  at the leader: gradient warps and combiners have taken what they need of entry qs
//   BOOKFULL[half]   32  at the leader, combiner: a row each
//   MASSFULL[half]   32 * CL * G (+ bytes)  at the leader, gradient warps: their share of a row's mass
//   BOOKEMPTY[half]  1   bookkeeper: the half's rows are in its registers
// compute-sanitizer's racecheck reports, in clusters, the combiner's reads of partial results against the reducers' stores of them. They are ordered by
// SFULL: each of the CL * R reducers arrives on it after its store (local ones by a release behind a plain store, remote ones with bytes that the barrier
// counts), and the combiner reads after the phase is complete. They are overwritten only after SEMPTY, on which the combiner arrives after its reads.
// A reducer or producer needs no arrival of its own on SEMPTY: a gradient warp passes READY only after all reducers of the row have delivered, and a
// reducer delivers only after the producer has read the entry and filled the slots.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_LAYOUT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_LAYOUT_CUH_

#include "kernels/cuda/device_counters.h"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/sweep.cuh"
#include "kernels/cuda/tally.cuh"

namespace lossgauge::cuda {

constexpr int kUnitVectors = 32;                    // a warp's step: one 16-byte vector a lane
constexpr int kUnitBytes = kUnitVectors * 16;
constexpr int kZeroPageBytes = 8192;                // source of bulk stores of zeros
constexpr int kPartialBytes = 32;                   // {max, sum, max|z| and tie flag, sum of z} {column of max|z|}
constexpr int kBookRows = 32, kBookBytes = 48;      // rows of half the book, bytes of a row in it

// CL: CTAs of a cluster. R, G: reducer and gradient warps. UCAP: units of a slot. NBUF: slots. NS: rows in the queue. SIGNALS, SMOOTHING: compiled in or out.
template <class T_, int CL_, int R_, int G_, int UCAP_, int NBUF_, int NS_, bool SIGNALS_, bool SMOOTHING_>
struct RingConfig {
  using T = T_;
  static constexpr int CL = CL_, R = R_, G = G_, UCAP = UCAP_, NBUF = NBUF_, NS = NS_;
  static constexpr bool SIGNALS = SIGNALS_, SMOOTHING = SMOOTHING_;
  static constexpr bool kShortRows = NS > 3;
  static constexpr int kServiceWarps = 4;
  static constexpr int THREADS = (kServiceWarps + R + G) * 32;
  static constexpr int BODY = 4;  // vectors a lane keeps in flight
  static constexpr uint32_t SLOT = UCAP * kUnitBytes;
  // The ring does not begin at 0: ptxas 13.0 was seen to take a slot's address for the base register where the two start out equal, and to store partial
  // results four slots too far.
  static constexpr uint32_t ZERO = 0, RING = ZERO + kZeroPageBytes, PARTIAL = RING + NBUF * SLOT, CONSTANTS = PARTIAL + NS * CL * R * kPartialBytes,
                            QUEUE = CONSTANTS + NS * 48, BOOK = QUEUE + NS * 16, TALLY = BOOK + 2 * kBookRows * kBookBytes,
                            MASS = TALLY + sizeof(CtaTally), FULL = MASS + (SIGNALS ? 2 * kBookRows * CL * G * 4 : 0), EMPTY = FULL + NBUF * 8,
                            QFULL = EMPTY + NBUF * 8, SFULL = QFULL + NS * 8, READY = SFULL + NS * 8, SEMPTY = READY + NS * 8,
                            BOOKFULL = SEMPTY + NS * 8, BOOKEMPTY = BOOKFULL + 16, MASSFULL = BOOKEMPTY + 16, BYTES = MASSFULL + 16;
  static_assert(CL * R <= 32, "one lane of the combiner for each partial result");
  static_assert(BYTES <= 227 * 1024, "shared memory of a CTA");
};

// A CTA's part of a row, in units. Vector 0 begins at a multiple of 128 bytes at or before the row, so that a warp's store never splits a line.
struct RowPart {
  unsigned long long base;  // byte offset of vector 0 from the tensor's pointer rounded down to 128 bytes; same for logits and gradient
  int column;               // of vector 0's first element; negative before the row's begin
  int vectors, units;
  int target_unit;          // may lie outside of [0, units)
  int first_special, last_special;  // units that reach beyond the row's columns; -1 = none
};

template <class C>
__device__ __forceinline__ RowPart MakeRowPart(const unsigned char* tensor, long long stride, int row, int target, int vocab, int rank) {
  constexpr int kBytes = Element<typename C::T>::kBytes, kElements = kVectorElements<typename C::T>;
  RowPart p;
  const unsigned long long address = reinterpret_cast<unsigned long long>(tensor) + static_cast<unsigned long long>(row) * stride;
  const int head = static_cast<int>(address & 127) / kBytes;
  const int all = (head + vocab + kElements - 1) / kElements;
  const int per = C::CL == 1 ? all : ((all + C::CL - 1) / C::CL + kUnitVectors - 1) & ~(kUnitVectors - 1);
  const int first = min(all, rank * per);
  p.vectors = min(per, all - first);
  p.base = (address & ~127ull) + 16ull * first;
  p.column = first * kElements - head;
  p.units = (p.vectors + kUnitVectors - 1) / kUnitVectors;
  p.target_unit = ((target + head) / kElements - first) >> 5;
  p.first_special = p.column < 0 ? 0 : -1;
  p.last_special = (p.vectors & (kUnitVectors - 1)) || p.column + p.vectors * kElements > vocab ? p.units - 1 : -1;
  return p;
}
__device__ __forceinline__ bool InRange(int u, int begin, int end) { return static_cast<unsigned>(u - begin) < static_cast<unsigned>(end - begin); }

// A position in the ring: address of the slot's data and of its FULL barrier (EMPTY is NBUF barriers on).
template <class C>
struct SlotCursor {
  uint32_t data, full, phase = 0;
  int left = C::NBUF;
  __device__ __forceinline__ explicit SlotCursor(uint32_t base) : data(base + C::RING), full(base + C::FULL) {}
  __device__ __forceinline__ uint32_t empty() const { return full + C::NBUF * 8; }
  __device__ __forceinline__ void Next() {
    data += C::SLOT;
    full += 8;
    if (--left == 0) {
      left = C::NBUF;
      data -= C::NBUF * C::SLOT;
      full -= C::NBUF * 8;
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
template <class C>
__device__ __forceinline__ void EntryTaken(uint32_t base, int qs) {
  if constexpr (C::CL == 1) BarrierArrive(base + C::SEMPTY + qs * 8);
  else BarrierArriveRemote(base + C::SEMPTY + qs * 8, 0);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_LAYOUT_CUH_
