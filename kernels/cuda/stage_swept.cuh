// Swept rows: WARPS warps sweep a row twice in shared memory, once for maximum and sum of exponentials, once for the gradient.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_SWEPT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_SWEPT_CUH_

#include <type_traits>

#include "kernels/cuda/stage_packed.cuh"

namespace lossgauge::cuda {

// A warp's units of a row.
struct RowUnits {
  uint32_t data;  // shared address of the row's vector 0, which begins at a multiple of 128 bytes of memory
  int head;       // columns that vector 0 begins before the row
  int vectors;
  int begin, end;
  bool first_special, last_special;  // the outermost of these units reach beyond the row's columns
};

// Calls inner(Units<N>, unit) for whole units, N at a time, and edge(unit) for those that reach beyond the row. One place in the code for each: what a row
// runs through has to fit the instruction cache.
template <class C, class Inner, class Edge>
__device__ __forceinline__ void ForUnits(const RowUnits& s, const Inner& inner, const Edge& edge) {
  const int whole_begin = s.begin + s.first_special, whole_end = s.end - s.last_special;
#pragma unroll 1
  for (int u = s.begin; u < s.end;) {
    if (u >= whole_begin && u + C::BODY <= whole_end) {
      inner(Units<C::BODY>(), u);
      u += C::BODY;
    } else if (u >= whole_begin && u < whole_end) {
      inner(Units<1>(), u++);
    } else {
      edge(u++);
    }
  }
}

// As LookAgainPacked, for a warp's units.
template <class C>
static __device__ __noinline__ uint2 LookAgainSwept(RowUnits s, int lane, int vocab, int target) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  const float z_target = LoadSharedElement<typename C::T>(s.data + (s.head + target) * E::kBytes);
  const int begin = max(s.begin * kUnitVectors * kElements - s.head, 0), end = min(s.end * kUnitVectors * kElements - s.head, vocab);
  unsigned best = 0, best_column = INT_MAX;
  bool tie = false;
#pragma unroll 1
  for (int column = begin + lane; column < end; column += 32) {
    const float z = LoadSharedElement<typename C::T>(s.data + (s.head + column) * E::kBytes);
    const unsigned bits = __float_as_uint(z) & 0x7fffffffu;
    tie |= column < target && z == z_target;
    if (bits < 0x7f800000u && bits > best) {
      best = bits;
      best_column = column;
    }
  }
  const unsigned most = __reduce_max_sync(~0u, best);
  return make_uint2(most | (__any_sync(~0u, tie) ? kStageTie : 0u),
                    __reduce_min_sync(~0u, best == most ? best_column : static_cast<unsigned>(INT_MAX)));
}

// What a warp has found in its units; after Exchange what the group has found in the row.
struct StagePartial {
  float max, sum;  // of the columns other than the target; sum of e^(z - max)
  unsigned magnitude, column;  // largest |z| and tie flag, if it was looked for
  float z_sum;
};

template <class C>
__device__ __forceinline__ StagePartial ReduceUnits(const RowUnits& s, const CrossEntropyLaunch& a, uint32_t best, int target, float z_target,
                                                    int target_unit, const uint4& element, int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  Reduction<T, false> r(SlopesOf<C>(a));  // smallest elements are seen to here: they take in the target
  uint32_t packed_min = 0u;
  const uint32_t mine = s.data + lane * 16;
  ForUnits<C>(
      s,
      [&](auto n, int u) {
        constexpr int N = decltype(n)::value;
        uint4 q[N];
#pragma unroll
        for (int i = 0; i < N; ++i) q[i] = LoadShared16(mine + (u + i) * kUnitBytes);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if constexpr (C::SIGNALS) packed_min = ChainMin<T>(q[i], packed_min);
          if constexpr (C::SMOOTHING) r.z_sum.Add(q[i]);
        }
        if (InRange(target_unit, u, u + N)) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            if (u + i == target_unit) q[i] = Without<T>(q[i], element);
          }
        }
        r.Take(q, false);
      },
      [&](int u) {
        const int vector = u * kUnitVectors + lane;
        const bool valid = vector < s.vectors;
        uint4 q[1] = {make_uint4(0u, 0u, 0u, 0u)};
        if (valid) q[0] = LoadShared16(mine + u * kUnitBytes);
        __syncwarp();
        const uint4 keep = EdgeMask<T>(vector * kElements - s.head, a.vocab_size, valid), zero = And(q[0], keep);
        if constexpr (C::SIGNALS) packed_min = ChainMin<T>(zero, packed_min);
        if constexpr (C::SMOOTHING) r.z_sum.Add(zero);
        q[0] = MaskToMinusInfinity<T>(q[0], keep);
        if (u == target_unit) q[0] = Without<T>(q[0], element);
        r.Take(q, false);
      });
  StagePartial p;
  p.max = WarpMax(r.max());
  p.sum = WarpSum(r.Sum() * Exp2((r.max() - p.max) * SlopesOf<C>(a).exact));
  p.magnitude = 0u;
  p.column = INT_MAX;
  if constexpr (C::SIGNALS) {
    const float magnitude = fmaxf(fmaxf(WordMax<T>(r.packed_max), -WordMin<T>(packed_min)), fabsf(z_target));
    // Equal values count: the lowest position decides, and rows come in any order.
    const bool reaches = (__float_as_uint(magnitude) & 0x7fffffffu) >= LargestSoFar(best);
    if (__any_sync(~0u, reaches) || p.max == z_target) {
      const uint2 l = LookAgainSwept<C>(s, lane, a.vocab_size, target);
      p.magnitude = l.x;
      p.column = l.y;
    }
  }
  p.z_sum = C::SMOOTHING ? WarpSum(r.z_sum.Share(lane)) : 0.f;
  return p;
}

// Partial results of the group's warps, in their order.
template <class C>
__device__ __forceinline__ StagePartial Exchange(uint32_t base, const StagePartial& mine, float steep, int group, int w, int lane, int turn) {
  if constexpr (C::WARPS == 1) return mine;
  const uint32_t place = base + C::PARTIAL + (group * 2 + turn) * C::WARPS * kPartialBytes;
  if (lane == 0) {
    StoreShared16(place + w * kPartialBytes, __float_as_uint(mine.max), __float_as_uint(mine.sum), mine.magnitude, __float_as_uint(mine.z_sum));
    StoreShared4(place + w * kPartialBytes + 16, mine.column);
  }
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(C::WARPS * 32) : "memory");
  uint4 x[C::WARPS];
  StagePartial p{kLowest, 0.f, 0u, INT_MAX, 0.f};
#pragma unroll
  for (int i = 0; i < C::WARPS; ++i) {
    x[i] = LoadShared16(place + i * kPartialBytes);
    p.max = fmaxf(p.max, __uint_as_float(x[i].x));
  }
  unsigned tie = 0;
#pragma unroll
  for (int i = 0; i < C::WARPS; ++i) {
    p.sum += __uint_as_float(x[i].y) * Exp2((__uint_as_float(x[i].x) - p.max) * steep);
    if constexpr (C::SMOOTHING) p.z_sum += __uint_as_float(x[i].w);
    tie |= x[i].z & kStageTie;
    p.magnitude = max(p.magnitude, x[i].z & ~kStageTie);
  }
  if (C::SIGNALS && p.magnitude != 0u) {
#pragma unroll
    for (int i = 0; i < C::WARPS; ++i) {
      if ((x[i].z & ~kStageTie) == p.magnitude) p.column = min(p.column, LoadShared4(place + i * kPartialBytes + 16));
    }
  }
  p.magnitude |= tie;
  return p;
}

template <class C>
__device__ __forceinline__ void WriteRow(StageSweep<typename C::T, C::SIGNALS>* r, const RowUnits& s, const CrossEntropyLaunch& a, unsigned char* vector0,
                                         int target_unit, const uint4& element, int lane) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  const uint32_t mine = s.data + lane * 16;
  unsigned char* const to = vector0 + lane * 16;
  const auto special = [&](auto plain, int u) {
    const int vector = u * kUnitVectors + lane, column = vector * kElements - s.head;
    const bool valid = vector < s.vectors;
    uint4 q = make_uint4(0u, 0u, 0u, 0u);
    if (valid) q = LoadShared16(mine + u * kUnitBytes);
    __syncwarp();
    const uint4 keep = EdgeMask<T>(column, a.vocab_size, valid);
    q = MaskToMinusInfinity<T>(q, keep);
    if (u == target_unit) q = Without<T>(q, element);
    uint4 o = r->Of(q);
    if constexpr (C::SMOOTHING || !plain.value) {  // else it is 0 there
      o = And(o, keep);
      if (u == target_unit) o = Cleared(o, element);
    }
    if constexpr (plain.value) {
      r->AddSquares(o);
    } else {
      r->AddSquares(r->g.before_squares != 1.f ? BeforeSquares<T>(o, r->g.before_squares) : o);
      o = WithFactor<T>(o, r->g.after);
    }
    if (valid) StoreSome<T>(to + u * kUnitBytes, o, -column, a.vocab_size - column);
    __syncwarp();
  };
  if (!r->g.plain()) {
#pragma unroll 1
    for (int u = s.begin; u < s.end; ++u) special(std::false_type(), u);
    return;
  }
  ForUnits<C>(
      s,
      [&](auto n, int u) {
        constexpr int N = decltype(n)::value;
        uint4 q[N];
#pragma unroll
        for (int i = 0; i < N; ++i) q[i] = LoadShared16(mine + (u + i) * kUnitBytes);
        const bool here = InRange(target_unit, u, u + N);
        if (here) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            if (u + i == target_unit) q[i] = Without<T>(q[i], element);
          }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
          uint4 o = r->Of(q[i]);
          if constexpr (C::SIGNALS) {
            if constexpr (C::SMOOTHING) {  // the offset stands at the target, too
              if (u + i == target_unit) o = Cleared(o, element);
            }
            r->AddSquares(o);
          }
          *reinterpret_cast<uint4*>(to + (u + i) * kUnitBytes) = o;
        }
      },
      [&](int u) { special(std::true_type(), u); });
}

// `source` is the group's stages: StageFeed or StageQueue.
template <class C, class Source>
__device__ __forceinline__ void RunSwept(uint32_t base, const CrossEntropyLaunch& a, Source& source, CtaTally* tally, int group, int w, int lane) {
  using T = typename C::T;
  using E = Element<T>;
  constexpr int kElements = kVectorElements<T>;
  FactorCache<C> factors(a);
  int turn = 0;
  for (; source.Wait(); turn ^= 1) {
    const StageRow row = LoadStageRow(source.row(0));
    unsigned number = source.TakePlace();
    const unsigned long long row_begin = reinterpret_cast<unsigned long long>(a.logits) + row.row * a.row_stride_bytes;
    RowUnits s;
    s.data = source.data();
    s.head = static_cast<int>(row_begin & 127) / E::kBytes;
    s.vectors = (s.head + a.vocab_size + kElements - 1) / kElements;
    const int units = (s.vectors + kUnitVectors - 1) / kUnitVectors;
    s.begin = w * units / C::WARPS;
    s.end = (w + 1) * units / C::WARPS;
    s.first_special = s.begin == 0 && s.head != 0;
    s.last_special = s.end == units && s.head + a.vocab_size != units * (kUnitVectors * kElements);
    const int position = row.target + s.head, target_vector = position / kElements, target_unit = target_vector / kUnitVectors;
    const bool has_target = target_vector % kUnitVectors == lane && InRange(target_unit, s.begin, s.end);
    const uint4 element = TargetElement<T>(position, has_target);
    const float z_target = LoadSharedElement<T>(s.data + position * E::kBytes);
    const StagePartial p =
        Exchange<C>(base, ReduceUnits<C>(s, a, base + C::BEST, row.target, z_target, target_unit, element, lane), SlopesOf<C>(a).exact, group, w, lane, turn);
    float to_max;
    const RowSums sums = SumsForGradient<T>(p.sum, p.max, z_target, p.z_sum, ScaleOf<C>(a), &to_max);
    const bool finite = IsFiniteRow<C>(sums);
    const Factor& factor = factors.For(row.scale);
    StageSweep<T, C::SIGNALS> r(
        MakeRowGradient(sums, factor, C::SMOOTHING ? a.label_smoothing : 0.f, a.z_loss_weight, a.vocab_size, ScaleOf<C>(a)), SlopesOf<C>(a));
    if (a.grad != nullptr) {
      unsigned char* const grad = a.grad + row.row * a.grad_stride_bytes;
      WriteRow<C>(&r, s, a, grad - s.head * E::kBytes, target_unit, element, lane);
      if (has_target) StoreTarget<T>(grad, row.target, r.g);
    }
    source.Release(tally);
    number = __shfl_sync(~0u, number, 0);
    const BookPlace<C> place{base, number};
    place.WaitUntilEmpty();
    if constexpr (C::SIGNALS) {
      const uint32_t mass = __reduce_add_sync(~0u, MassShare(r.Mass() * r.g.inverse_total));
      const float squares = WarpSum(r.stage_squares.Share(lane)) * factor.restore * factor.restore;
      if (lane == 0) {
        StoreShared4(place.mass(w), mass);
        StoreShared4(place.share(w), __float_as_uint(squares));
      }
    }
    if (lane == 0) {
      if (w == 0) {
        const bool correct = z_target > p.max || (z_target == p.max && (p.magnitude & kStageTie) == 0);
        const unsigned magnitude = p.magnitude & ~kStageTie;
        StoreBookEntry(place.entry(), {row.row, row.target, z_target, p.max, p.sum, p.z_sum, magnitude, p.column,
                                       C::SIGNALS ? TargetSquare<T>(r.g, factor) : 0.f, finite, correct, r.g.after != 1.f && r.g.after != 0.f});
        if (C::SIGNALS && finite && magnitude != 0u) RaiseLargest(base + C::BEST, magnitude);
      }
    }
    __syncwarp();
    ArriveAsWarp(place.full(), lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_SWEPT_CUH_
