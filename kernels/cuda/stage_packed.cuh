// Packed rows: a warp holds ROWS short rows in registers, LANES lanes a row, from their logits to their gradient.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_PACKED_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_PACKED_CUH_

#include "kernels/cuda/stage_feed.cuh"
#include "kernels/cuda/stage_math.cuh"

namespace lossgauge::cuda {

// Over the lanes of a row.
template <class C>
__device__ __forceinline__ float RowSum(float x) {
#pragma unroll
  for (int o = C::LANES / 2; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
template <class C>
__device__ __forceinline__ uint32_t RowMax(uint32_t packed) {
#pragma unroll
  for (int o = C::LANES / 2; o; o >>= 1) packed = Element<typename C::T>::Max2(packed, __shfl_xor_sync(~0u, packed, o));
  return packed;
}

// Finite magnitude and lowest column of the largest |z| of each lane's row; in the sign bit, whether a column before the target equals it. For few rows:
// those that reach the CTA's largest so far, those with -inf columns, those whose target equals the others' maximum.
constexpr unsigned kStageTie = 0x80000000u;
template <class C>
static __device__ __noinline__ uint2 LookAgainPacked(uint32_t data, int l, int vocab, int target, float z_target) {
  using E = Element<typename C::T>;
  unsigned best = 0, best_column = INT_MAX, tie = 0;
#pragma unroll 1
  for (int column = l; column < vocab; column += C::LANES) {
    const float z = column == target ? z_target : LoadSharedElement<typename C::T>(data + column * E::kBytes);
    const unsigned bits = __float_as_uint(z) & 0x7fffffffu;
    if (column < target && z == z_target) tie = kStageTie;
    if (bits < 0x7f800000u && bits > best) {
      best = bits;
      best_column = column;
    }
  }
#pragma unroll
  for (int o = C::LANES / 2; o; o >>= 1) {
    const unsigned other = __shfl_xor_sync(~0u, best, o), column = __shfl_xor_sync(~0u, best_column, o);
    tie |= __shfl_xor_sync(~0u, tie, o);
    best_column = other > best ? column : other == best ? min(column, best_column) : best_column;
    best = max(best, other);
  }
  return make_uint2(best | tie, best_column);
}

// The rows' gradients from their exponentials, and their squares.
template <class C, bool kFull, bool kPlain>
__device__ __forceinline__ void WritePacked(const CrossEntropyLaunch& a, const StagePlan& plan, const float (&e)[kPackedUnits][kVectorElements<typename C::T>],
                                            const RowGradient& g, float scale, float mass_scale, unsigned char* to, bool present, int l, int target_unit,
                                            const uint4& element, float* mass, StageSquares<typename C::T>* squares) {
  using T = typename C::T;
  using E = Element<T>;
  constexpr int kElements = kVectorElements<T>;
#pragma unroll
  for (int k = 0; k < kPackedUnits; ++k) {
    const int vector = l + k * C::LANES;
    uint4 o;
    uint32_t* w = &o.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = e[k][j * E::kPerWord], y = E::kPerWord == 2 ? e[k][j * E::kPerWord + E::kPerWord - 1] : 0.f;
      if constexpr (C::SIGNALS) {
        mass[0] = fmaf(x, mass_scale, mass[0]);
        if constexpr (E::kPerWord == 2) mass[1] = fmaf(y, mass_scale, mass[1]);
      }
      w[j] = E::Pack(fmaf(x, scale, g.offset), fmaf(y, scale, g.offset));
    }
    if constexpr (C::SIGNALS) {
      uint4 s = o;
      // An offset stands also where there is no column, and at the target.
      if constexpr (C::SMOOTHING) {
        if constexpr (!kFull) s = And(s, ColumnMask<T>(vector * kElements, a.vocab_size, INT_MIN, true));
        if (k == target_unit) s = Cleared(s, element);
      }
      if constexpr (!kPlain) {
        if (g.before_squares != 1.f) s = BeforeSquares<T>(s, g.before_squares);
      }
      squares->Add(s);
    }
    if constexpr (!kPlain) o = WithFactor<T>(o, g.after);
    const bool stores = present && (kFull || vector < plan.vectors);
    if (kFull || plan.whole) {
      if (stores) *reinterpret_cast<uint4*>(to + k * (C::LANES * 16)) = o;
    } else {
      if (stores) StoreSome<T>(to + k * (C::LANES * 16), o, 0, a.vocab_size - vector * kElements);
      __syncwarp();
    }
  }
}

// kFull: rows fill all vectors that their lanes hold. Nothing is masked then, and no branch is in the way.
template <class C, bool kFull>
__device__ __forceinline__ void RunPacked(uint32_t base, const CrossEntropyLaunch& a, const StagePlan& plan, StageFeed<C>& feed, CtaTally* tally, int lane) {
  using T = typename C::T;
  using E = Element<T>;
  constexpr int kElements = kVectorElements<T>;
  const int sub = lane / C::LANES, l = lane % C::LANES;
  FactorCache<C> factors(a);
  const ExponentSlopes slopes = SlopesOf<C>(a);
  while (feed.Wait()) {
    const StageRow row = LoadStageRow(feed.row(sub));
    unsigned number = feed.TakePlace();
    const bool present = row.row >= 0;
    const uint32_t data = feed.data() + sub * plan.pitch, mine = data + l * 16;
    const uint32_t target_at = data + row.target * E::kBytes;
    const float z_target = LoadSharedElement<T>(target_at);
    const int target_vector = row.target / kElements;
    const bool has_target = target_vector % C::LANES == l;
    uint4 q[kPackedUnits];
    const auto load = [&](uint32_t beyond) {
#pragma unroll
      for (int k = 0; k < kPackedUnits; ++k) {
        q[k] = LoadShared16(kFull || l + k * C::LANES < plan.vectors ? mine + k * (C::LANES * 16) : beyond);
      }
    };
    const auto keep = [&](int k) { return EdgeMask<T>((l + k * C::LANES) * kElements, a.vocab_size, true); };
    uint32_t packed_max = E::kMinusInfinity, packed_min = 0u;
    PlainSum<T> plain_sum;
    if constexpr (C::SIGNALS || C::SMOOTHING) {
      load(base + C::ZERO);
#pragma unroll
      for (int k = 0; k < kPackedUnits; ++k) {
        if constexpr (!kFull) {
          if (!plan.whole) q[k] = And(q[k], keep(k));
        }
        if constexpr (C::SMOOTHING) plain_sum.Add(q[k]);
        if constexpr (C::SIGNALS) packed_min = ChainMin<T>(q[k], packed_min);
      }
    }
    // The others are everything but the target: it is taken out where it lies in the stage, which is cheaper than out of registers whose number nobody knows.
    __syncwarp();  // everybody has z_target
    if (has_target) StoreSharedMinusInfinity<T>(target_at);
    load(base + C::MINUS);
#pragma unroll
    for (int k = 0; k < kPackedUnits; ++k) {
      if constexpr (!kFull) {
        if (!plan.whole) q[k] = MaskToMinusInfinity<T>(q[k], keep(k));
      }
      packed_max = ChainMax<T>(q[k], packed_max);
    }
    const float lane_max = WordMax<T>(packed_max);
    const float others_max = fmaxf(WordMax<T>(RowMax<C>(packed_max)), kLowest);
    uint2 largest = make_uint2(0u, INT_MAX);
    if constexpr (C::SIGNALS) {
      const float magnitude = fmaxf(fmaxf(lane_max, -WordMin<T>(packed_min)), fabsf(z_target));
      // Equal values count: the lowest position decides, and rows come in any order.
      const bool reaches = (__float_as_uint(magnitude) & 0x7fffffffu) >= LargestSoFar(base + C::BEST);
      if (__any_sync(~0u, present && (reaches || others_max == z_target))) largest = LookAgainPacked<C>(data, l, a.vocab_size, row.target, z_target);
    }
    AsyncProxyFence();  // the next row must not be loaded to this place before -inf is stored
    feed.Release(tally);
    const int target_unit = target_vector / C::LANES;
    const uint4 element = TargetElement<T>(row.target, C::SMOOTHING && has_target);

    Exponential<T> exponential;
    const Factor& factor = factors.For(row.scale);
    // Lifted only as far as neither a confident target nor a tiny factor pushes the gradient down again.
    const float lift = fmaxf(kGradientLift - fmaxf(ceilf((z_target - others_max) * slopes.exact), 0.f), 0.f);
    exponential.Set(others_max, slopes, factor.before_squares > 1.f ? 0.f : lift);
    float e[kPackedUnits][kElements];
    float sum0 = 0.f, sum1 = 0.f;
#pragma unroll
    for (int k = 0; k < kPackedUnits; ++k) {
      const uint32_t* const w = &q[k].x;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        e[k][i] = exponential.Of(E::Get(w[i / E::kPerWord], i % E::kPerWord));
        if (i & 1) sum1 += e[k][i];
        else sum0 += e[k][i];
      }
    }
    const float unit = exponential.Unit();
    const float others = RowSum<C>(sum0 + sum1) * unit;
    const float z_sum = C::SMOOTHING ? RowSum<C>(plain_sum.Share(lane)) : 0.f;
    float to_max;
    const RowSums sums = SumsForGradient<T>(others, others_max, z_target, z_sum, ScaleOf<C>(a), &to_max);
    const RowGradient g = MakeRowGradient(sums, factor, C::SMOOTHING ? a.label_smoothing : 0.f, a.z_loss_weight, a.vocab_size, ScaleOf<C>(a));
    const bool finite = IsFiniteRow<C>(sums);
    float mass[2] = {0.f, 0.f};
    StageSquares<T> squares;
    if (a.grad != nullptr) {
      unsigned char* const grad = a.grad + row.row * a.grad_stride_bytes;
      const float scale = g.scale * unit * to_max, mass_scale = g.inverse_total * unit * to_max;
      if (__builtin_expect(__all_sync(~0u, g.plain()), 1))
        WritePacked<C, kFull, true>(a, plan, e, g, scale, mass_scale, grad + l * 16, present, l, target_unit, element, mass, &squares);
      else WritePacked<C, kFull, false>(a, plan, e, g, scale, mass_scale, grad + l * 16, present, l, target_unit, element, mass, &squares);
      if (present && has_target) StoreTarget<T>(grad, row.target, g);
    }

    number = __shfl_sync(~0u, number, 0);
    const BookPlace<C> place{base, number + sub};
    place.WaitUntilEmpty();
    if (l == 0) {
      const bool correct = z_target > others_max || (z_target == others_max && (largest.x & kStageTie) == 0);
      const unsigned magnitude = largest.x & ~kStageTie;
      StoreBookEntry(place.entry(), {row.row, row.target, z_target, others_max, others, z_sum, magnitude, largest.y,
                                     C::SIGNALS ? TargetSquare<T>(g, factor) : 0.f, finite, correct, g.after != 1.f && g.after != 0.f});
      if (C::SIGNALS && present && finite && magnitude != 0u) RaiseLargest(base + C::BEST, magnitude);
    }
    if constexpr (C::SIGNALS) {
      uint32_t share = MassShare(mass[0] + mass[1]);
      if constexpr (C::ROWS == 1) share = __reduce_add_sync(~0u, share);
      if (C::ROWS > 1 || l == 0) asm volatile("st.shared.b32 [%0], %1;" ::"r"(place.mass(C::ROWS > 1 ? l : 0)), "r"(share) : "memory");
      bool holds;
      const float square = ShareOfFour<T>(squares, lane, &holds) * factor.restore * factor.restore;
      if (holds) StoreShared4(place.share(l / 4), __float_as_uint(square));
    }
    __syncwarp();
    ArriveAsWarp(place.full(), lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_PACKED_CUH_
