// Gradient warps of the ring kernel: the second sweep over the row's bytes, from shared memory, and the only writes of the row.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_GRADIENT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_GRADIENT_CUH_

#include "kernels/cuda/ring_merge.cuh"

namespace lossgauge::cuda {


constexpr float kMostLaneSquares = 70368744177664.f;  // 2^46, as kLargestSquare

// Squares are kept in steps of 2^-56 in a lane's 64 bits and spilled to whole numbers row by row.
struct LaneSquares {
  Word whole = 0, fraction = 0;
  __device__ __forceinline__ void Add(float x) {
    if (x >= 128.f) {  // more than the conversion below holds
      const float w = truncf(fminf(x, kMostLaneSquares));
      whole += __float2ull_rz(w);
      x = fminf(x - w, 1.f);
    }
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
__device__ __forceinline__ void DeliverMass(uint32_t base, unsigned row, int rank, int w, uint32_t share, bool nonfinite) {
  const uint32_t half = row / kBookRows & 1, barrier = base + C::MASSFULL + half * 8;
  const uint32_t to = base + C::MASS + (row % (2 * kBookRows) * (C::CL * C::G) + rank * C::G + w) * 4;
  const uint32_t bits = share | (nonfinite ? 0x80000000u : 0u);
  if (C::CL == 1 || rank == 0) {
    StoreShared4(to, bits);
    BarrierArrive(barrier);
  } else {
    ArriveWithRemote4(to, barrier, 0, bits);
  }
}

// True if this warp has written a value that is not finite: read back, for the rare row whose squares do not add up to a number.
template <class C>
__device__ __noinline__ bool WroteNonfinite(RowPart part, int w, int lane, int vocab) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  const unsigned char* const grad = reinterpret_cast<const unsigned char*>(part.grad);
  bool any = false;
  for (int first = 0; first < part.units(); first += C::UCAP) {
    const unsigned k = min(static_cast<unsigned>(C::UCAP), static_cast<unsigned>(part.units() - first));
    const int end = first + static_cast<int>(static_cast<unsigned>(w + 1) * k / C::G);
    for (int u = first + static_cast<int>(static_cast<unsigned>(w) * k / C::G); u < end; ++u) {
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
__device__ __forceinline__ void RunGradient(uint32_t base, const CrossEntropyLaunch& a, CtaTally* tally, int rank, int w, int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  SlotCursor<C> slot(base);
  LaneSquares squares;
  for (QueueCursor<C> q;; q.Next()) {
    BarrierWait(base + C::READY + q.qs * 8, q.phase);
    const RowPart part = LoadPart<C>(base, q.qs);
    if (part.row < 0) break;
    const RowConstants<T> constants = LoadConstants<C>(base, q.qs, SlopesOf<C>(a));
    GradientSweep<T, C::SIGNALS> r(constants.gradient, constants.exponential, constants.scale);
    __syncwarp();
    if (lane == 0) EntryTaken<C>(base, q.qs);
    if (a.grad == nullptr) {  // loss only: READY says that the reducers are through with the row
      for (int first = 0; first < part.units(); first += C::UCAP, slot.Next()) {
        if (lane == 0) BarrierArrive(slot.empty());
      }
      if (C::SIGNALS && lane == 0) DeliverMass<C>(base, q.rows, rank, w, 0u, false);
      continue;
    }
    uint4* const to = reinterpret_cast<uint4*>(part.grad) + lane;
    for (int first = 0; first < part.units(); first += C::UCAP) {
      const uint32_t data = slot.data() + lane * 16;
      BarrierWait(slot.full(), slot.phase);
      ForShare<C, C::G>(
          part, first, w, !constants.plain,
          [&](auto n, int u) { WriteUnits<C, decltype(n)::value>(&r, data + (u - first) * kUnitBytes, to + u * kUnitVectors); },
          [&](int u) {
            const int vector = u * kUnitVectors + lane;
            WriteSpecial<C>(&r, data + (u - first) * kUnitBytes, to + u * kUnitVectors, part.column + vector * kElements, a.vocab_size, part.target,
                            vector < part.vectors);
          });
      __syncwarp();
      if (lane == 0) BarrierArrive(slot.empty());
      slot.Next();
    }
    if constexpr (C::SIGNALS) {
      // Rounded in whole numbers and added in one instruction, where a sum of fp32 takes five rounds of shuffles.
      const float lane_mass = fminf((r.mass0 + r.mass1) * constants.mass_unit, kLargestMassShare);
      const uint32_t mass = __reduce_add_sync(~0u, __float2uint_rn(lane_mass * kMassSteps));
      const float share = r.Squares(lane) * constants.restore * constants.restore;
      bool nonfinite = r.g.after != 1.f && r.g.after != 0.f;
      if (constants.finite) {
        if (__any_sync(~0u, !(share < INFINITY))) nonfinite |= WroteNonfinite<C>(part, w, lane, a.vocab_size);
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
