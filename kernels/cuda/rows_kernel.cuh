// The plain kernel: a group of warps owns a row. For every case that ring and stage kernels do not take: devices before sm_90, soft cap, scales of fp32 or fp16
// logits, rows that are too long, buffers of another alignment.
//
// VECTORS > 0: the row is held in registers (at most WARPS * 32 * VECTORS vectors): one read, one write. VECTORS = 0: it is read twice, for the
// loss alone once: maximum and sum are kept together and rescaled when the maximum rises.
//
// A row costs a few dozen instructions of double arithmetic for its loss and signals. They are put off until a warp has 32 rows, then each lane takes
// one: for short rows they would otherwise take as long as the row.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROWS_KERNEL_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROWS_KERNEL_CUH_

#include <climits>
#include <type_traits>

#include "kernels/cuda/capped_table.cuh"
#include "kernels/cuda/launch_end.cuh"
#include "kernels/cuda/mapped_sweep.cuh"
#include "kernels/cuda/row_reader.cuh"
#include "kernels/cuda/sweep.cuh"

namespace lossgauge::cuda {

template <class T_, int WARPS_, int VECTORS_, int GROUPS_, bool SIGNALS_, LogitMap MAP_>
struct RowsConfig {
  using T = T_;
  static constexpr int WARPS = WARPS_, VECTORS = VECTORS_, GROUPS = GROUPS_;  // warps of a row, vectors of a lane, rows at once in a CTA
  static constexpr bool SIGNALS = SIGNALS_, MAPPED = MAP_ != LogitMap::kNone;
  static constexpr LogitMap MAP = MAP_;
  static constexpr bool TABLE = MAP == LogitMap::kTable;
  using Map = MappedLogits<T, !MAPPED ? LogitMap::kScale : TABLE ? LogitMap::kCap : MAP>;
  static constexpr int GROUP_THREADS = WARPS * 32, THREADS = GROUP_THREADS * GROUPS;
  static constexpr int IN_FLIGHT = 1;  // vectors of a row read twice that a thread has on their way at once
};

// What a row leaves for its loss and signals.
struct RowResult {
  RowSums sums;
  long long row;
  int target;
  float max_abs;
  int max_abs_column;
  bool correct, finite, nonfinite_grad;
  float mass, squares;
};

// Reductions over the warps of a row; every thread of the group calls, every thread gets the result.
template <class C>
struct Group {
  float4 (*scratch)[C::WARPS];  // [GROUPS][WARPS], shared
  int group, warp, lane, thread;
  __device__ __forceinline__ void Sync() const {
    if constexpr (C::WARPS == 1) __syncwarp();
    else asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(C::GROUP_THREADS) : "memory");
  }
  // Combines one float4 a warp with `combine(a, b)`, in the order of warps.
  template <class Combine>
  __device__ __forceinline__ float4 All(float4 mine, Combine combine) const {
    if constexpr (C::WARPS == 1) return mine;
    if (lane == 0) scratch[group][warp] = mine;
    Sync();
    float4 all = scratch[group][0];
#pragma unroll
    for (int i = 1; i < C::WARPS; ++i) all = combine(all, scratch[group][i]);
    Sync();
    return all;
  }
};

struct AddFour {
  __device__ __forceinline__ float4 operator()(const float4& a, const float4& b) const {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
};
struct MaxFour {
  __device__ __forceinline__ float4 operator()(const float4& a, const float4& b) const {
    return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
  }
};

// Maximum, sum of e^(z - maximum), another maximum and another sum.
struct MergeFour {
  __device__ __forceinline__ float4 operator()(const float4& a, const float4& b) const {
    const float m = fmaxf(a.x, b.x);
    return make_float4(m, a.y * Exp2((a.x - m) * kLog2E) + b.y * Exp2((b.x - m) * kLog2E), fmaxf(a.z, b.z), a.w + b.w);
  }
};

// What the first sweep finds.
struct FirstSweep {
  RowSums sums;
  double others_top;       // largest z of the columns other than the target, as the map gives it; others_max is the same in fp32
  float others, others_z;  // sums over these columns: of e^(z - others_top), and of z with label smoothing
  float others_max;  // largest z of the columns other than the target
  float largest;     // mapped: the logit of the largest z of all
  float max_abs;     // over finite z; infinite if that takes another look (a -inf column)
};

template <class C>
struct RowWork {
  using T = typename C::T;
  using E = Element<T>;
  static constexpr int kElements = kVectorElements<T>;
  const CrossEntropyLaunch& a;
  const Group<C>& group;
  const typename C::Map& map;
  const uint32_t table;  // shared address of the table of exponentials, if there is one
  const RowReader<T> reader;
  const int target;
  const float target_logit;

  __device__ __forceinline__ double Z(float logit) const { return C::MAPPED ? ExactMap{a.logit_scale, a.logit_softcap}.Z(logit) : logit; }

  // Calls whole(vector, packed[]) for vectors v, v + GROUP_THREADS, ... of this thread that are columns of the row other than the target, or some(vector, packed)
  // for one of which that is not so for some lane of the warp; the same of both for all lanes, also beyond the row's end. Held vectors come from `held`.
  template <class Whole, class Some>
  __device__ __forceinline__ void ForVectors(const uint4* held, const Whole& whole, const Some& some) const {
    constexpr int kStep = C::GROUP_THREADS, kMany = C::IN_FLIGHT;
    const int target_vector = (target + reader.head) / kElements;
    const int first_whole = reader.head != 0, end_whole = (reader.head + reader.vocab) / kElements;
    const auto is_whole = [&](int first, int count) {  // of the warp
      const int begin = first + group.warp * 32, to_target = target_vector - begin;
      const bool has_target = static_cast<unsigned>(to_target) < static_cast<unsigned>(count * kStep) && (to_target & (kStep - 1)) < 32;
      return begin >= first_whole && begin + (count - 1) * kStep + 32 <= end_whole && !has_target;
    };
    const auto one = [&](int first, const uint4& q) {
      const uint4 packed[1] = {q};
      if (is_whole(first, 1)) whole(first + group.thread, packed);
      else some(first + group.thread, q);
    };
    if constexpr (C::VECTORS > 0) {
#pragma unroll
      for (int i = 0; i < C::VECTORS; ++i) {
        if (i * kStep < reader.vectors) one(i * kStep, held[i]);
      }
    } else {
      for (int first = 0; first < reader.vectors; first += kMany * kStep) {
        if (kMany > 1 && is_whole(first, kMany)) {
          uint4 packed[kMany];
#pragma unroll
          for (int i = 0; i < kMany; ++i) packed[i] = reader.LoadWhole(first + i * kStep + group.thread);
          whole(first + group.thread, packed);
        } else {
          for (int i = 0; i < kMany && first + i * kStep < reader.vectors; ++i) one(first + i * kStep, reader.Load(first + i * kStep + group.thread));
        }
      }
    }
  }

  __device__ __forceinline__ FirstSweep Reduce(const uint4* held) const {
    const bool smoothing = a.label_smoothing != 0.f;
    auto r = [&] {
      if constexpr (C::TABLE) return TableReduction<C::SIGNALS>(map, CapTable(a, table));
      else if constexpr (C::MAPPED) return MappedReduction<T, C::MAP, C::SIGNALS>(map);
      else return Reduction<T, C::SIGNALS>(UnscaledSlopes());
    }();
    ForVectors(
        held,
        [&](int, const auto& packed) {
          if constexpr (C::MAPPED) r.Take(packed[0], smoothing);
          else r.Take(packed, smoothing);
        },
        [&](int v, const uint4& q) { r.TakeSome(q, reader.Column(v), reader.vocab, target, v < reader.vectors, smoothing); });
    FirstSweep f;
    const double exact_z_target = Z(target_logit);
    const float z_target = static_cast<float>(exact_z_target);
    const float z_target_low = fabsf(z_target) < INFINITY ? static_cast<float>(exact_z_target - z_target) : 0.f;
    if constexpr (C::MAPPED) {
      const float4 most = group.All(make_float4(WarpMax(r.Largest()), WarpMax(r.LargestMagnitude()), 0.f, 0.f), MaxFour());
      f.largest = map.Turned(fmaxf(most.x, map.Turned(target_logit)));
      f.others_top = fmax(Z(map.Turned(most.x)), static_cast<double>(kLowest));
      f.others_max = static_cast<float>(f.others_top);
      if constexpr (C::TABLE) f.others_top = f.others_max;
      f.max_abs = fabsf(static_cast<float>(Z(most.y)));
      const float4 total = group.All(make_float4(WarpSum(r.Sum(C::TABLE ? f.others_max : most.x)), smoothing ? WarpSum(static_cast<float>(r.SumOfZ())) : 0.f, 0.f, 0.f), AddFour());
      f.others = total.x;
      f.others_z = total.y;
    } else {
      const float warp_max = WarpMax(r.max());
      const float4 all = group.All(make_float4(warp_max, WarpSum(r.Sum() * Exp2((r.max() - warp_max) * kLog2E)), WarpMax(r.LargestMagnitude()),
                                               smoothing ? WarpSum(r.z_sum.Share(group.lane)) : 0.f),
                                   MergeFour());
      f.others_top = f.others_max = all.x;
      f.others = all.y;
      f.max_abs = all.z;
      f.others_z = all.w;
    }
    const float of_rounded = C::MAPPED ? f.others * ExpExact(f.others_top - f.others_max) : f.others;
    f.sums = CompleteSums(of_rounded, f.others_max, z_target, f.others_z + z_target, 1., z_target_low);
    const float target_abs = fabsf(z_target);
    if (target_abs < INFINITY) f.max_abs = fmaxf(f.max_abs, target_abs);
    return f;
  }

  // Largest finite |z| (as bits) and its lowest column if `largest` (`value` is what the sweep found), else the lowest column with z == value (INT_MAX: none). Reads the row again from
  // memory, before anything of it is overwritten. For few rows: those that reach the group's largest so far, and ties of the target with the maximum.
  __device__ __forceinline__ uint2 LookAgain(bool largest, float value) const {
    unsigned best = 0, column = INT_MAX;
    float least = 0.f;
    if constexpr (C::MAPPED) {
      if (largest && value < INFINITY) least = map.Least(value);
    }
    for (int v = group.thread; v < reader.vectors; v += C::GROUP_THREADS) {
      const uint4 q = reader.Load(v);
      const uint32_t* w = &q.x;
      for (int i = 0; i < kElements; ++i) {
        const unsigned c = static_cast<unsigned>(reader.Column(v) + i);
        if (c >= static_cast<unsigned>(reader.vocab)) continue;
        const float logit = E::Get(w[i / E::kPerWord], i % E::kPerWord);
        if (fabsf(logit) < least) continue;
        const float z = static_cast<float>(Z(logit));
        const unsigned bits = largest ? __float_as_uint(fabsf(z)) : (z == value ? 1u : 0u);
        if (bits >= 0x7f800000u || (!largest && bits == 0)) continue;
        if (bits > best || (bits == best && c < column)) {
          best = bits;
          column = c;
        }
      }
    }
    const unsigned most = __reduce_max_sync(~0u, best);
    column = __reduce_min_sync(~0u, best == most ? column : static_cast<unsigned>(INT_MAX));
    const float4 all = group.All(make_float4(__uint_as_float(most), __uint_as_float(column), 0.f, 0.f), [](const float4& x, const float4& y) {
      const unsigned a_bits = __float_as_uint(x.x), b_bits = __float_as_uint(y.x), a_column = __float_as_uint(x.y), b_column = __float_as_uint(y.y);
      const bool first = a_bits > b_bits || (a_bits == b_bits && a_column < b_column);
      return first ? x : y;
    });
    return make_uint2(__float_as_uint(all.x), __float_as_uint(all.y));
  }

  struct Emitted {
    float mass;     // of the row
    float squares;  // of the gradient as emitted, at upstream 1 and before the denominator
    bool nonfinite;
  };
  template <class Sweep>
  __device__ __forceinline__ Emitted WriteGradient(const uint4* held, Sweep&& sweep, float target_exponential, float restore) const {
    const RowGradient& g = sweep.g;
    const auto some = [&](int v, const uint4& q) {
      uint4 o = sweep.TakeSome(q, reader.Column(v), reader.vocab, target, v < reader.vectors);
      if (g.after != 1.f) o = sweep.After(o);
      if (v < reader.vectors) reader.Store(v, o);
    };
    ForVectors(
        held,
        [&](int v, const auto& packed) {
          constexpr int kCount = sizeof(packed) / sizeof(uint4);
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            if (g.plain()) reader.Store(v + i * C::GROUP_THREADS, sweep.Take(packed[i]));
            else some(v + i * C::GROUP_THREADS, packed[i]);
          }
        },
        some);
    if constexpr (!C::SIGNALS) return {};
    const float squares = sweep.Squares(group.lane) * restore * restore;
    const float4 all = group.All(make_float4(WarpSum(sweep.Mass()), WarpSum(squares), 0.f, 0.f), AddFour());
    Emitted e{(all.x + target_exponential) * g.inverse_total, all.y, g.after != 1.f && g.after != 0.f};
    if (!(e.squares < INFINITY)) {  // too large to be squared, or not finite: look at what was written
      bool bad = false;
      for (int c = group.thread; c < reader.vocab; c += C::GROUP_THREADS) {
        bad |= !(fabsf(E::Load(reader.grad + static_cast<long long>(c) * E::kBytes)) < INFINITY);
      }
      const float4 any = group.All(make_float4(__any_sync(~0u, bad) ? 1.f : 0.f, 0.f, 0.f, 0.f), MaxFour());
      e.nonfinite |= any.x != 0.f;
      e.squares = FLT_MAX;
    }
    return e;
  }
};

// Zeros in columns [from, to) of a gradient row.
template <class C>
__device__ __forceinline__ void ZeroColumns(const Group<C>& group, unsigned char* row, int from, int to) {
  using E = Element<typename C::T>;
  unsigned char* const begin = row + static_cast<long long>(from) * E::kBytes;
  unsigned char* const end = row + static_cast<long long>(to) * E::kBytes;
  unsigned char* body = reinterpret_cast<unsigned char*>((reinterpret_cast<unsigned long long>(begin) + 15) & ~15ull);
  unsigned char* tail = reinterpret_cast<unsigned char*>(reinterpret_cast<unsigned long long>(end) & ~15ull);
  if (body >= tail) body = tail = end;
  const auto zero = [&](unsigned char* p, unsigned char* stop) {
    for (p += group.thread * E::kBytes; p < stop; p += C::GROUP_THREADS * E::kBytes) {
      if constexpr (E::kBytes == 2) *reinterpret_cast<unsigned short*>(p) = 0;
      else *reinterpret_cast<uint32_t*>(p) = 0;
    }
  };
  zero(begin, body);
  zero(tail, end);
  for (unsigned char* p = body + group.thread * 16; p < tail; p += C::GROUP_THREADS * 16) *reinterpret_cast<uint4*>(p) = make_uint4(0u, 0u, 0u, 0u);
}

// Loss and signals of up to 32 rows, one a lane where `mine`, into the tally of the group.
template <class C>
__device__ __noinline__ void BookRows(const CrossEntropyLaunch& a, const RowResult& r, bool mine, CtaTally* tally, int lane) {
  RowLoss l{};
  if (mine) {
    l = MakeRowLoss(r.sums, a.label_smoothing, a.z_loss_weight, a.vocab_size, 1.);
    l.finite = r.finite;
    if (a.losses != nullptr) a.losses[r.row] = static_cast<float>(l.objective);
    if (a.log_z != nullptr) a.log_z[r.row] = static_cast<float>(l.log_z);
  }
  __syncwarp();
  if constexpr (C::SIGNALS) {
    TallyRows(a, tally, {r.row, r.target, r.sums.z_target, r.max_abs, r.max_abs_column, r.correct}, l, mine, lane);
    if (a.grad != nullptr) TallyGradients(tally, r.mass, r.squares, r.nonfinite_grad, mine && r.finite, lane);
  } else {
    TallyObjectives(tally, l, mine, lane);
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::TABLE ? 3 : 1) RowsKernel(const __grid_constant__ CrossEntropyLaunch a) {
  using T = typename C::T;
  __shared__ float4 scratch[C::GROUPS][C::WARPS];
  __shared__ CtaTally tallies[C::GROUPS];
  for (unsigned i = threadIdx.x; i < sizeof(tallies) / 8; i += C::THREADS) reinterpret_cast<Word*>(tallies)[i] = 0;
  uint32_t table = 0;
  if constexpr (C::TABLE) {
    __shared__ uint32_t exponentials[kTableBytes / 4];
    table = SharedAddress(exponentials);
    FillCapTable(a, table);
  }
  __syncthreads();
  const int group_index = threadIdx.x / C::GROUP_THREADS, lane = threadIdx.x & 31;
  const Group<C> group{scratch, group_index, static_cast<int>(threadIdx.x % C::GROUP_THREADS) >> 5, lane,
                       static_cast<int>(threadIdx.x % C::GROUP_THREADS)};
  const typename C::Map map(C::MAPPED ? a.logit_scale : 1., C::MAPPED ? a.logit_softcap : 0.);
  const double denominator = ReadDenominator(a);
  unsigned best_abs = 0;
  if constexpr (C::SIGNALS) best_abs = static_cast<unsigned>(a.counters->worst_logit.high >> 32) & 0x7fffffffu;

  CtaTally& tally = tallies[group_index];  // only the first warp of a group books, and its first thread counts
  RowResult waiting = {};
  int booked = 0;
  const long long step = static_cast<long long>(gridDim.x) * C::GROUPS;
  const long long first = static_cast<long long>(blockIdx.x) * C::GROUPS + group_index;
  // Target, target's logit and row would be three memory latencies one behind the other: the next row's target is fetched a row ahead, and its bytes are
  // on their way to the L2 meanwhile.
  long long next_target = first < a.rows ? ReadTarget(a, first) : 0;
  float factor_of = 1.f;
  Factor factor = MakeFactor<T>(factor_of, denominator, 1.);
  for (long long row = first; row < a.rows; row += step) {
    const long long target = next_target;
    if (row + step < a.rows) {
      next_target = ReadTarget(a, row + step);
      if constexpr (C::VECTORS > 0) {
        const unsigned char* const next = a.logits + (row + step) * a.row_stride_bytes;
        for (int at = group.thread * 128; at < a.vocab_size * Element<T>::kBytes; at += C::GROUP_THREADS * 128)
          asm volatile("prefetch.global.L2 [%0];" ::"l"(next + at));
      }
    }
    const bool first_thread = group.thread == 0;
    if (!IsUnmasked(a, target)) {
      if (a.grad != nullptr) ZeroColumns<C>(group, a.grad + row * a.grad_stride_bytes, 0, a.columns);
      if (first_thread) {
        if (a.losses != nullptr) a.losses[row] = 0.f;
        if (a.log_z != nullptr) a.log_z[row] = 0.f;
        ++tally.counts[kTokens];
        tally.counts[kBadTargets] += target != a.ignore_index;
      }
      continue;
    }
    const RowWork<C> work{a, group, map, table, RowReader<T>(a, row), static_cast<int>(target),
                          Element<T>::Load(a.logits + row * a.row_stride_bytes + target * Element<T>::kBytes)};
    uint4 held[C::VECTORS > 0 ? C::VECTORS : 1];
    if constexpr (C::VECTORS > 0) {
#pragma unroll
      for (int i = 0; i < C::VECTORS; ++i) held[i] = work.reader.Load(group.thread + i * C::GROUP_THREADS);
    }
    const FirstSweep f = work.Reduce(held);
    RowResult r{f.sums, row, static_cast<int>(target), f.max_abs, INT_MAX};
    r.finite = f.sums.defined() && fabsf(f.sums.z_target) < INFINITY && (a.label_smoothing == 0.f || fabsf(f.sums.z_sum) < INFINITY);
    if constexpr (C::SIGNALS) {
      if (r.finite) {
        r.correct = f.sums.z_target > f.others_max;
        if (f.sums.z_target == f.others_max) r.correct = work.LookAgain(false, f.others_max).y == static_cast<unsigned>(target);
        // Equal values count: the lowest position decides, and rows come in any order.
        if (__float_as_uint(f.max_abs) >= best_abs) {
          const uint2 l = work.LookAgain(true, f.max_abs);
          r.max_abs = __uint_as_float(l.x);
          r.max_abs_column = static_cast<int>(l.y);
          best_abs = max(best_abs, l.x);
        }
      }
    }
    if (a.grad != nullptr) {
      if (const float scale = ReadScale(a, row); scale != factor_of) {
        factor = MakeFactor<T>(scale, denominator, 1.);
        factor_of = scale;
      }
      RowGradient g = MakeRowGradient(f.sums, factor, a.label_smoothing, a.z_loss_weight, a.vocab_size, 1.);
      group.Sync();  // the row has been read by all before anything of it is overwritten
      typename RowWork<C>::Emitted emitted;
      if constexpr (C::TABLE) {
        const auto slope = map.template Of<false, true>(map.Turned(work.target_logit), map.AtLog2(0.), 0.f).slope;
        g.target *= slope * map.slope();
        emitted = work.WriteGradient(held, TableGradient<C::SIGNALS>(g, map, CapTable(a, table), static_cast<float>(map.fall())), f.sums.target, factor.restore);
      } else if constexpr (C::MAPPED) {
        const auto reference = C::MAP == LogitMap::kScale ? map.At(map.Turned(f.largest)) : map.AtLog2(g.max * kLog2EDouble);
        // The gradient's exponentials are relative to the largest z as rounded to fp32.
        const float unit = C::MAP == LogitMap::kScale ? ExpExact(work.Z(f.largest) - g.max) : 1.f;
        g.target *= map.template Of<false, true>(map.Turned(work.target_logit), reference, 0.f).slope * map.slope();
        emitted = work.WriteGradient(held, MappedGradient<T, C::MAP, C::SIGNALS>(g, map, reference, unit), f.sums.target, factor.restore);
      } else {
        emitted = work.WriteGradient(held, GradientSweep<T, C::SIGNALS>(g, UnscaledSlopes()), f.sums.target, factor.restore);
      }
      if (a.columns > a.vocab_size) ZeroColumns<C>(group, work.reader.grad, a.vocab_size, a.columns);
      r.mass = emitted.mass;
      r.squares = emitted.squares;
      r.nonfinite_grad = emitted.nonfinite;
    }
    if (group.warp == 0) {
      if (first_thread) {
        ++tally.counts[kTokens];
        ++tally.counts[kUnmaskedTokens];
        if constexpr (C::SIGNALS) {
          tally.counts[kTargetFingerprint] += lg_target_hash(target);
          tally.counts[kMaskFingerprint] += lg_position_hash(ReadPosition(a, row), target);
        }
      }
      if (lane == booked) waiting = r;
      if (++booked == 32) {
        BookRows<C>(a, waiting, true, &tally, lane);
        booked = 0;
      }
    }
  }
  if (group.warp == 0) {
    BookRows<C>(a, waiting, lane < booked, &tally, lane);
    __syncwarp();
    EndLoss(a, &tally, nullptr, gridDim.x * C::GROUPS, lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROWS_KERNEL_CUH_
