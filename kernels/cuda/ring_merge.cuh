// Merging the reducers' partial results into the constants of the row's gradient (combiner), and from there into loss and signals (bookkeeper).
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_MERGE_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_MERGE_CUH_

#include <climits>

#include "kernels/cuda/ring_layout.cuh"

namespace lossgauge::cuda {

// What gradient warps need of a row beside its part, through shared memory.
template <class T>
struct RowConstants {
  Exponential<T> exponential;
  RowGradient gradient;  // offset, target; after and before_squares if not plain
  float scale;           // of an exponential, to the gradient
  float mass_unit;       // of an exponential, to its probability
  float restore;         // Factor::restore
  bool finite, plain;
};

template <class C>
__device__ __forceinline__ void StoreConstants(uint32_t base, int qs, const RowGradient& g, const ExponentSlopes& slopes, float restore, bool finite) {
  Exponential<typename C::T> e;
  e.Set(g.max, slopes, kGradientLift);
  const float unit = e.Unit();
  const float2 packed = e.Packed();
  const uint32_t to = base + C::CONSTANTS + qs * kConstantsBytes;
  StoreShared16(to, __float_as_uint(packed.x), __float_as_uint(packed.y), __float_as_uint(g.scale * unit), __float_as_uint(g.offset));
  StoreShared16(to + 16, __float_as_uint(g.target), __float_as_uint(unit * g.inverse_total), __float_as_uint(restore), (finite ? 1u : 0u) | (g.plain() ? 2u : 0u));
  StoreShared16(to + 32, __float_as_uint(g.after), __float_as_uint(g.before_squares), 0u, 0u);
}
template <class C>
__device__ __forceinline__ RowConstants<typename C::T> LoadConstants(uint32_t base, int qs, const ExponentSlopes& slopes) {
  RowConstants<typename C::T> c;
  const uint32_t from = base + C::CONSTANTS + qs * kConstantsBytes;
  const uint4 x = LoadShared16(from), y = LoadShared16(from + 16);
  c.exponential.Unpack(make_float2(__uint_as_float(x.x), __uint_as_float(x.y)), slopes);
  c.scale = __uint_as_float(x.z);
  c.mass_unit = __uint_as_float(y.y);
  c.restore = __uint_as_float(y.z);
  c.finite = (y.w & 1u) != 0;
  c.plain = (y.w & 2u) != 0;
  c.gradient = {0.f, 0.f, __uint_as_float(x.w), __uint_as_float(y.x), 0.f, 1.f, 1.f};
  if (!c.plain) {
    const uint4 z = LoadShared16(from + 32);
    c.gradient.after = __uint_as_float(z.x);
    c.gradient.before_squares = __uint_as_float(z.y);
  }
  return c;
}

// A lane's share of a row's mass: in steps of 2^-25, at most 1.94, so that those of a warp fit 31 bits. A row with more is wrong all the same.
constexpr float kMassSteps = 33554432.f, kLargestMassShare = 1.9375f;

constexpr uint32_t kTieBefore = 0x80000000u;  // in the word of max|z|: a column before the target reaches the target's logit

struct MergedRow {
  RowSums sums;
  float max_abs;
  int max_abs_column;  // only if a reducer looked
  bool correct;
};

// All lanes get the same result; lane i takes partial result i.
template <class C>
struct Partials {
  uint4 w;
  const uint32_t from;
  const int lane;
  float others_max;

  __device__ __forceinline__ Partials(uint32_t base, int qs, int lane_) : from(base + C::PARTIAL + qs * (C::CL * C::R * kPartialBytes)), lane(lane_) {
    w = make_uint4(__float_as_uint(kLowest), 0u, 0u, 0u);
    if (lane < C::CL * C::R) w = LoadShared16(from + lane * kPartialBytes);
    __syncwarp();
  }
  __device__ __forceinline__ RowSums Sums(const CrossEntropyLaunch& a, float z_target) {
    const float max = __uint_as_float(w.x);
    others_max = WarpMax(max);
    const float others = WarpSum(__uint_as_float(w.y) * Exp2((max - others_max) * SlopesOf<C>(a).exact));
    return CompleteSums(others, others_max, z_target, C::SMOOTHING ? WarpSum(__uint_as_float(w.w)) + z_target : 0.f, ScaleOf<C>(a));
  }
  // After Sums: what only the signals need.
  __device__ __forceinline__ void Signals(const QueueEntry& e, MergedRow* m) const {
    const unsigned abs_bits = w.z & ~kTieBefore;
    const unsigned best = __reduce_max_sync(~0u, abs_bits);
    int column = INT_MAX;
    if (abs_bits == best && lane < C::CL * C::R) column = static_cast<int>(LoadShared4(from + lane * kPartialBytes + 16));
    column = static_cast<int>(__reduce_min_sync(~0u, static_cast<unsigned>(column)));
    const bool tie_before = __any_sync(~0u, (w.z & kTieBefore) != 0);
    m->correct = e.z_target > others_max || (e.z_target == others_max && !tie_before);
    m->max_abs = __uint_as_float(best);
    m->max_abs_column = column;
    const float target_abs = fabsf(e.z_target);
    if (target_abs < INFINITY && (target_abs > m->max_abs || (target_abs == m->max_abs && e.target < column))) {
      m->max_abs = target_abs;
      m->max_abs_column = e.target;
    }
  }
};

template <class C>
__device__ __forceinline__ bool IsFinite(const RowSums& r) {
  return r.defined() && fabsf(r.z_target) < INFINITY && (!C::SMOOTHING || fabsf(r.z_sum) < INFINITY);
}

// The leader's combiner hands rows to the bookkeeper through a book of two halves, and gradient warps add their masses to it, so that the bookkeeper's
// double arithmetic, a lane a row, delays nobody.
template <class C>
__device__ __forceinline__ uint32_t BookEntry(uint32_t base, unsigned row) {
  return base + C::BOOK + row % (2 * kBookRows) * kBookBytes;
}

template <class C>
__device__ __forceinline__ void RunCombiner(uint32_t base, const CrossEntropyLaunch& a, CtaTally* tally, int rank, int lane) {
  const double denominator = ReadDenominator(a);
  float factor_of = 1.f;
  Factor factor = MakeFactor<typename C::T>(factor_of, denominator, ScaleOf<C>(a));
  QueueCursor<C> q;
  for (;; q.Next()) {
    const QueueEntry e = WaitForRow(base, q);
    if (e.row < 0) break;
    // A half of the book is entered NS rows early: gradient warps of other CTAs may be that far ahead.
    const unsigned entered = (q.rows + C::NS) / kBookRows;
    if (rank == 0 && (q.rows + C::NS) % kBookRows == 0) BarrierWait(base + C::BOOKEMPTY + (entered & 1) * 8, ~(entered >> 1) & 1);
    if (e.scale != factor_of) {
      factor = MakeFactor<typename C::T>(e.scale, denominator, ScaleOf<C>(a));
      factor_of = e.scale;
    }
    if constexpr (kForRacecheck && C::CL > 1) BarrierWaitCluster(base + C::SFULL + q.qs * 8, q.phase);
    else BarrierWait(base + C::SFULL + q.qs * 8, q.phase);
    __syncwarp();
    Partials<C> partials(base, q.qs, lane);
    MergedRow m;
    m.sums = partials.Sums(a, e.z_target);
    const bool finite = IsFinite<C>(m.sums);
    if (lane == 0) {
      const RowGradient g = MakeRowGradient(m.sums, factor, a.label_smoothing, a.z_loss_weight, a.vocab_size, ScaleOf<C>(a));
      StoreConstants<C>(base, q.qs, g, SlopesOf<C>(a), factor.restore, finite);
      BarrierArrive(base + C::READY + q.qs * 8);
      if (q.rows == 0) BarrierArrive(base + C::STARTED);
    }
    __syncwarp();
    if constexpr (C::SIGNALS) {
      if (rank == 0) partials.Signals(e, &m);
    }
    if (lane == 0 || kForRacecheck) EntryTaken<C>(base, q.qs);
    if (rank != 0) continue;
    if (lane == 0) {
      const unsigned half = q.rows / kBookRows & 1;
      const uint32_t to = BookEntry<C>(base, q.rows);
      StoreShared16(to, e.row, e.target, __float_as_uint(e.z_target), __float_as_uint(m.sums.max));
      StoreShared16(to + 16, __float_as_uint(m.sums.others), __float_as_uint(m.sums.target), __float_as_uint(m.sums.z_sum), finite);
      if constexpr (C::SIGNALS) {
        StoreShared16(to + 32, __float_as_uint(m.max_abs), m.max_abs_column, m.correct, __float_as_uint(m.sums.target / m.sums.total()));
        if (finite && __float_as_uint(m.max_abs) > (kForRacecheck ? LargestSoFar(tally) : tally->best_abs)) {
          // For reducers to look past smaller magnitudes. Nothing orders it: that they may see it late, or never, costs them a look, nothing else.
          if constexpr (kForRacecheck) atomicMax(&tally->best_abs, __float_as_uint(m.max_abs));
          else tally->best_abs = __float_as_uint(m.max_abs);
          if constexpr (C::CL > 1 && !kForRacecheck) {
            for (int c = 1; c < C::CL; ++c) StoreRemote4(SharedAddress(&tally->best_abs), c, tally->best_abs);
          }
        }
      }
      BarrierArrive(base + C::BOOKFULL + half * 8);
    }
    __syncwarp();
  }
  // Gradient warps wait for nothing else at the end.
  BarrierWait(base + C::PFULL + q.qs * 8, q.phase);
  if (lane == 0) {
    BarrierArrive(base + C::READY + q.qs * 8);
    if (q.rows == 0) BarrierArrive(base + C::STARTED);
  }
  if (rank != 0) return;
  // The last half is filled up with entries that are no rows.
  const unsigned half = q.rows / kBookRows & 1, first = q.rows % kBookRows;
  if (static_cast<unsigned>(lane) >= first) {
    StoreShared4(BookEntry<C>(base, half * kBookRows + lane), ~0u);
    BarrierArrive(base + C::BOOKFULL + half * 8);
    if constexpr (C::SIGNALS) BarrierArriveMany(base + C::MASSFULL + half * 8, C::CL * C::G);
  }
}

// Loss and signals of 32 rows at once, off the critical path.
template <class C>
static __device__ __noinline__ void RunBookkeeper(uint32_t base, const CrossEntropyLaunch& a, CtaTally* tally, CtaTally* grad_tally, int lane) {
  bool told = false;  // that the losses are complete
  for (unsigned batch = 0;; ++batch) {
    const unsigned half = batch & 1;
    BarrierWait(base + C::BOOKFULL + half * 8, batch >> 1 & 1);
    __syncwarp();
    const uint32_t from = BookEntry<C>(base, half * kBookRows + lane);
    const uint4 x = LoadShared16(from), y = LoadShared16(from + 16);
    uint4 z = make_uint4(0u, 0u, 0u, 0u);
    if constexpr (C::SIGNALS) z = LoadShared16(from + 32);
    const int row = static_cast<int>(x.x);
    RowLoss l{};
    if (row >= 0) {
      const RowSums sums{__uint_as_float(x.w), __uint_as_float(y.x), __uint_as_float(y.y), __uint_as_float(x.z), 0.f, __uint_as_float(y.z)};
      l = MakeRowLoss(sums, a.label_smoothing, a.z_loss_weight, a.vocab_size, ScaleOf<C>(a));
      l.finite = y.w != 0;
      if (a.losses != nullptr) a.losses[row] = static_cast<float>(l.objective);
      if (a.log_z != nullptr) a.log_z[row] = static_cast<float>(l.log_z);
    }
    __syncwarp();
    if constexpr (C::SIGNALS) {
      const float max_abs = ZOf<C>(a, __uint_as_float(z.x));
      TallyRows(a, tally, {row, static_cast<int>(x.y), __uint_as_float(x.z), max_abs, static_cast<int>(z.y), z.z != 0}, l, row >= 0, lane);
    } else {
      TallyObjectives(tally, l, row >= 0, lane);
    }
    const bool last = __any_sync(~0u, row < 0);
    if (last && !told) ArriveForLoss();
    if constexpr (C::SIGNALS) {
      // Where this half was full with the last row, the next one, which holds none, is there before the last row's masses.
      for (int complete = 0; !complete;) {
        complete = BarrierTest(base + C::MASSFULL + half * 8, batch >> 1 & 1);
        const bool next = !told && !last && BarrierTest(base + C::BOOKFULL + (half ^ 1) * 8, (batch + 1) >> 1 & 1);
        complete = __all_sync(~0u, complete);
        if (__all_sync(~0u, next) && static_cast<int>(LoadShared4(BookEntry<C>(base, (half ^ 1) * kBookRows))) < 0) {
          ArriveForLoss();
          told = true;
        }
      }
      Word shares = 0;
      bool nonfinite = false;
      for (int i = 0; i < C::CL * C::G; ++i) {
        const uint32_t share = LoadShared4(base + C::MASS + ((half * kBookRows + lane) * (C::CL * C::G) + i) * 4);
        nonfinite |= (share & 0x80000000u) != 0;
        shares += share & 0x7fffffffu;
      }
      const double mass = static_cast<double>(shares) / kMassSteps + static_cast<double>(__uint_as_float(z.w));  // z.w: the target's
      // Squares: by the gradient warps.
      if (a.grad != nullptr) TallyGradients(grad_tally, mass, 0.f, nonfinite, row >= 0 && l.finite, lane);
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(base + C::BOOKEMPTY + half * 8);
    if (last) break;
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_MERGE_CUH_
