// Gradient warps of the ring kernel: the second sweep over the row's bytes, from shared memory, and the only writes of the row.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_GRADIENT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_GRADIENT_CUH_

#include "kernels/cuda/ring_layout.cuh"

namespace lossgauge::cuda {

constexpr float kLargestMassShare = 65536.f;

// Squares are kept in steps of 2^-56 in a lane's 64 bits and spilled to whole numbers row by row.
struct LaneSquares {
  Word whole = 0, fraction = 0;
  __device__ __forceinline__ void Add(float x) {
    fraction += static_cast<Word>(__float2ull_rn(x * 72057594037927936.f));
    whole += fraction >> 56;
    fraction &= (Word{1} << 56) - 1;
  }
};

template <class C, int N, class S>
__device__ __forceinline__ void WriteUnits(S* sweep, uint32_t from, uint4* to) {
  uint4 q[N];
#pragma unroll
  for (int i = 0; i < N; ++i) q[i] = LoadShared16(from + i * kUnitBytes);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i * kUnitVectors] = sweep->Take(q[i]);
}

// A unit that holds the target, reaches beyond the row, or belongs to a row whose factor is 0 or not finite.
template <class C, class S>
__device__ __forceinline__ void WriteSpecial(S* sweep, uint32_t from, uint4* to, int column, int vocab, int target, bool valid) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  uint4 q = make_uint4(0u, 0u, 0u, 0u);
  if (valid) q = LoadShared16(from);
  __syncwarp();
  uint4 o = sweep->TakeSome(q, column, vocab, target, valid);
  if (sweep->g.after != 1.f) o = sweep->After(o);
  const uint32_t* w = &o.x;
  if (valid && column >= 0 && column + kElements <= vocab) {
    *to = o;
  } else if (valid) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (static_cast<unsigned>(column + i) >= static_cast<unsigned>(vocab)) continue;
      if constexpr (E::kBytes == 2) reinterpret_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(w[i >> 1] >> (16 * (i & 1)));
      else reinterpret_cast<uint32_t*>(to)[i] = w[i];
    }
  }
  __syncwarp();
}

// One warp's share of a row's mass, and whether its part of the gradient holds a non-finite value (sign bit), to the leader's book. Lane 0. Nothing is
// waited for: a gradient warp that did (an atomic's answer takes half a microsecond) would cost 0.4 us a row.
template <class C>
__device__ __forceinline__ void DeliverMass(uint32_t base, unsigned row, int rank, int w, float share, bool nonfinite) {
  const uint32_t half = row / kBookRows & 1, barrier = base + C::MASSFULL + half * 8;
  const uint32_t to = base + C::MASS + (row % (2 * kBookRows) * (C::CL * C::G) + rank * C::G + w) * 4;
  const uint32_t bits = __float_as_uint(share == share ? fabsf(share) : kLargestMassShare) | (nonfinite ? 0x80000000u : 0u);
  if (C::CL == 1 || rank == 0) {
    StoreShared4(to, bits);
    BarrierArrive(barrier);
  } else {
    ArriveWithRemote4(to, barrier, 0, bits);
  }
}

// True if this warp has written a value that is not finite: read back, for the rare row whose squares do not add up to a number.
template <class C>
__device__ __noinline__ bool WroteNonfinite(const unsigned char* grad, RowPart part, int units_per_chunk, int w, int lane, int vocab) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  bool any = false;
  for (int u0 = 0; u0 < part.units; u0 += units_per_chunk) {
    const int k = min(units_per_chunk, part.units - u0);
    for (int u = u0 + w * k / C::G; u < u0 + (w + 1) * k / C::G; ++u) {
      const int vector = u * kUnitVectors + lane;
      for (int i = 0; vector < part.vectors && i < kElements; ++i) {
        const int column = part.column + vector * kElements + i;
        if (static_cast<unsigned>(column) < static_cast<unsigned>(vocab)) any |= !(fabsf(E::Load(grad + vector * 16ll + i * E::kBytes)) < INFINITY);
      }
    }
  }
  return __any_sync(~0u, any);
}

template <class C>
__device__ __forceinline__ void RunGradient(uint32_t base, const CrossEntropyLaunch& a, CtaTally* tally, int units_per_chunk, int rank, int w, int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  const long long shift = reinterpret_cast<long long>(a.grad) - reinterpret_cast<long long>(a.logits);
  const long long shift_per_row = a.grad_stride_bytes - a.row_stride_bytes;
  SlotCursor<C> slot(base);
  LaneSquares squares;
  for (QueueCursor<C> q;; q.Next()) {
    const QueueEntry e = WaitForRow(base, q);
    if (e.row < 0) break;
    // Before READY: what stands behind it delays every row.
    const RowPart part = MakeRowPart<C>(a.logits, a.row_stride_bytes, e.row, e.target, a.vocab_size, rank);
    unsigned char* const grad = reinterpret_cast<unsigned char*>(part.base) + shift + e.row * shift_per_row;
    uint4* const to = reinterpret_cast<uint4*>(grad) + lane;
    BarrierWait(base + C::READY + q.qs * 8, q.phase);
    const uint32_t constants = base + C::CONSTANTS + q.qs * 48;
    const uint4 c0 = LoadShared16(constants), c1 = LoadShared16(constants + 16), c2 = LoadShared16(constants + 32);
    GradientSweep<T, C::SIGNALS> r({__uint_as_float(c0.x), __uint_as_float(c0.y), __uint_as_float(c0.z), __uint_as_float(c0.w), __uint_as_float(c1.x),
                                    __uint_as_float(c1.y), __uint_as_float(c1.z)});
    const float restore = __uint_as_float(c1.w);
    const bool finite = c2.x != 0;
    __syncwarp();
    if (lane == 0) EntryTaken<C>(base, q.qs);
    if (a.grad == nullptr) {  // loss only: READY says that the reducers are through with the row
      for (int u0 = 0; u0 < part.units; u0 += units_per_chunk, slot.Next()) {
        if (lane == 0) BarrierArrive(slot.empty());
      }
      if (C::SIGNALS && lane == 0) DeliverMass<C>(base, q.rows, rank, w, 0.f, false);
      continue;
    }
    const bool plain = r.g.plain();
    for (int u0 = 0; u0 < part.units; u0 += units_per_chunk) {
      const int k = min(units_per_chunk, part.units - u0);
      int u = u0 + w * k / C::G;
      const int end = u0 + (w + 1) * k / C::G;
      uint32_t p = slot.data + (u - u0) * kUnitBytes + lane * 16;
      uint4* out = to + u * kUnitVectors;
      const bool special =
          !plain | InRange(part.target_unit, u, end) | InRange(part.first_special, u, end) | InRange(part.last_special, u, end);
      BarrierWait(slot.full, slot.phase);
      __syncwarp();
      if (!special) {
        for (; u + C::BODY <= end; u += C::BODY, p += C::BODY * kUnitBytes, out += C::BODY * kUnitVectors) WriteUnits<C, C::BODY>(&r, p, out);
        for (; u + 2 <= end; u += 2, p += 2 * kUnitBytes, out += 2 * kUnitVectors) WriteUnits<C, 2>(&r, p, out);
        if (u < end) WriteUnits<C, 1>(&r, p, out);
      } else {
        for (; u < end; ++u, p += kUnitBytes, out += kUnitVectors) {
          if (!plain || u == part.target_unit || u == part.first_special || u == part.last_special) {
            const int vector = u * kUnitVectors + lane;
            WriteSpecial<C>(&r, p, out, part.column + vector * kElements, a.vocab_size, e.target, vector < part.vectors);
          } else {
            WriteUnits<C, 1>(&r, p, out);
          }
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(slot.empty());
      slot.Next();
    }
    if constexpr (C::SIGNALS) {
      const float mass = WarpSum(r.Mass()) * r.g.inverse_total;
      const float share = r.squares.Share(lane) * restore * restore;
      bool nonfinite = r.g.after != 1.f && r.g.after != 0.f;
      if (finite) {
        if (__any_sync(~0u, !(share < INFINITY))) nonfinite |= WroteNonfinite<C>(grad, part, units_per_chunk, w, lane, a.vocab_size);
        else if (!nonfinite) squares.Add(share);
      }
      if (lane == 0) DeliverMass<C>(base, q.rows, rank, w, mass, nonfinite);
    }
  }
  if constexpr (C::SIGNALS) {
    // whole + fraction / 2^56 of each lane; fractions of 32 lanes stay below 2^61.
    const Word whole = WarpSum(squares.whole), fraction = WarpSum(squares.fraction);
    if (lane == 0) AtomicAddTo(tally, kLogitGradSqSum, fraction << 8, whole + (fraction >> 56));
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_GRADIENT_CUH_
