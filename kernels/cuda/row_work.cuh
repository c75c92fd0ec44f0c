// A row that a group of warps owns: its two sweeps over logits and gradient. For the plain kernel and those of the vocabulary-parallel loss.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROW_WORK_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROW_WORK_CUH_

#include <climits>
#include <new>
#include <type_traits>

#include "kernels/cuda/capped_table.cuh"
#include "kernels/cuda/mapped_sweep.cuh"
#include "kernels/cuda/near_cap.cuh"
#include "kernels/cuda/row_reader.cuh"
#include "kernels/cuda/sweep.cuh"

namespace lossgauge::cuda {

template <class T_, int WARPS_, int VECTORS_, int GROUPS_, bool SIGNALS_, LogitMap MAP_>
struct RowsConfig {
  using T = T_;
  static constexpr int WARPS = WARPS_, VECTORS = VECTORS_, GROUPS = GROUPS_;  // warps of a row, vectors of a lane, rows at once in a CTA
  static constexpr bool SIGNALS = SIGNALS_, MAPPED = MAP_ != LogitMap::kNone;
  static constexpr LogitMap MAP = MAP_;
  static constexpr bool TABLE = MAP == LogitMap::kTable, NEAR = MAP == LogitMap::kCap;
  using Map = std::conditional_t<NEAR, CapMap<T>, MappedLogits<T, !MAPPED ? LogitMap::kScale : TABLE ? LogitMap::kCap : MAP>>;
  static constexpr int GROUP_THREADS = WARPS * 32, THREADS = GROUP_THREADS * GROUPS;
  static constexpr int IN_FLIGHT = NEAR ? 2 : 1;  // vectors of a row read twice that a thread has on their way at once
};

// A launch's map. Where most logits are near, it is made once a CTA, in shared memory: few threads need its doubles at a time, and they would take the registers of all.
template <class C>
using HeldMap = std::conditional_t<C::NEAR, const typename C::Map&, const typename C::Map>;
template <class C>
struct SharedMap {
  alignas(16) unsigned char bytes[C::NEAR ? sizeof(typename C::Map) : 16];

  // A barrier follows.
  __device__ __forceinline__ void Make(const CrossEntropyLaunch& a) {
    if constexpr (C::NEAR) {
      if (threadIdx.x == 0) new (bytes) typename C::Map(a.logit_scale, a.logit_softcap);
    }
  }
  __device__ __forceinline__ HeldMap<C> Get(const CrossEntropyLaunch& a) const {
    if constexpr (C::NEAR) return *reinterpret_cast<const typename C::Map*>(bytes);
    else return typename C::Map(C::MAPPED ? a.logit_scale : 1., C::MAPPED ? a.logit_softcap : 0.);
  }
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
  double others_top;       // largest z of the columns other than the target, as the map gives it
  float others_max;        // the same in fp32
  float others, others_z;  // sums over these columns: of e^(z - others_top), and of z with label smoothing
  float largest;           // mapped: the logit of the largest z of all
  float max_abs;           // over finite z; infinite if that takes another look (a -inf column)
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

  // In a lane each: one behind the other they would take as long as a short row.
  struct ThreeZ {
    double target, top, magnitude;
  };
  __device__ __forceinline__ ThreeZ ZOfThree(float of_target, float of_top, float of_magnitude) const {
    const double z = Z(group.lane == 0 ? of_target : group.lane == 1 ? of_top : of_magnitude);
    return {__shfl_sync(~0u, z, 0), __shfl_sync(~0u, z, 1), __shfl_sync(~0u, z, 2)};
  }

  // Which vectors of a warp, `count` of them from `first` on a step of the group apart, are columns of the row other than the target.
  struct WholeVectors {
    int target_vector, first_whole, end_whole, warp;
    __device__ __forceinline__ bool operator()(int first, int count) const {
      constexpr int kStep = C::GROUP_THREADS;
      const int begin = first + warp * 32, to_target = target_vector - begin;
      const bool has_target = static_cast<unsigned>(to_target) < static_cast<unsigned>(count * kStep) && (to_target & (kStep - 1)) < 32;
      return begin >= first_whole && begin + (count - 1) * kStep + 32 <= end_whole && !has_target;
    }
  };
  __device__ __forceinline__ WholeVectors Wholes() const {
    return {(target + reader.head) / kElements, reader.head != 0, (reader.head + reader.vocab) / kElements, group.warp};
  }

  // Calls near(vector, packed) for vectors of nothing but columns of the row other than the target, and near_some for the others. Those of which these return
  // false, to all lanes of a warp alike, are read again and go to far, which is to ask each time what of them counts. IN_FLIGHT vectors are on their way meanwhile.
  template <class Near, class NearSome, class Far>
  __device__ __forceinline__ void ForNearVectors(const Near& near, const NearSome& near_some, const Far& far) const {
    constexpr int kStep = C::GROUP_THREADS, kDepth = C::IN_FLIGHT, kBatch = 32;
    static_assert(kBatch % kDepth == 0, "a bit for each vector of a batch");
    const WholeVectors is_whole = Wholes();
    const auto within_row = [&](int v) { return v >= is_whole.first_whole && v < is_whole.end_whole; };
    uint4 coming[kDepth];
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
      if (within_row(j * kStep + group.thread)) coming[j] = reader.LoadWhole(j * kStep + group.thread);
    }
    for (int batch = 0; batch < reader.vectors; batch += kBatch * kStep) {
      uint32_t left = 0;
      for (int i = 0; i < kBatch && batch + i * kStep < reader.vectors; i += kDepth) {
#pragma unroll
        for (int j = 0; j < kDepth; ++j) {
          const int first = batch + (i + j) * kStep, v = first + group.thread;
          if (first >= reader.vectors) break;
          const uint4 q = coming[j];
          if (within_row(v + kDepth * kStep)) coming[j] = reader.LoadWhole(v + kDepth * kStep);
          if (!(is_whole(first, 1) ? near(v, q) : near_some(v, within_row(v) ? q : reader.Load(v)))) left |= 1u << (i + j);
        }
      }
#pragma unroll 1
      for (; left != 0; left &= left - 1) {
        const int v = batch + (__ffs(static_cast<int>(left)) - 1) * kStep + group.thread;
        far(v, reader.Load(v));
      }
    }
  }

  // Calls whole(vector, packed[]) for vectors v, v + GROUP_THREADS, ... of this thread that are columns of the row other than the target, or some(vector, packed)
  // for one of which that is not so for some lane of the warp; the same of both for all lanes, also beyond the row's end. Held vectors come from `held`.
  template <class Whole, class Some>
  __device__ __forceinline__ void ForVectors(const uint4* held, const Whole& whole, const Some& some) const {
    constexpr int kStep = C::GROUP_THREADS, kMany = C::IN_FLIGHT;
    const WholeVectors is_whole = Wholes();
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

  template <class Far>
  __device__ __forceinline__ NearReduction<T, C::SIGNALS, Far> MakeNear(const Far& far) const {
    return {map, far};
  }

  __device__ __forceinline__ FirstSweep Reduce(const uint4* held) const {
    const bool smoothing = a.label_smoothing != 0.f;
    auto r = [&] {
      if constexpr (C::TABLE) return TableReduction<C::SIGNALS>(map, CapTable(a, table));
      else if constexpr (C::NEAR) return MakeNear(MappedReduction<T, C::MAP, C::SIGNALS>(map));
      else if constexpr (C::MAPPED) return MappedReduction<T, C::MAP, C::SIGNALS>(map);
      else return Reduction<T, C::SIGNALS>(UnscaledSlopes());
    }();
    if constexpr (C::NEAR) {
      ForNearVectors([&](int, const uint4& q) { return r.TakeNear(q, smoothing); },
                     [&](int v, const uint4& q) { return r.TakeNearSome(q, reader.Column(v), reader.vocab, target, v < reader.vectors, smoothing); },
                     [&](int v, const uint4& q) { r.TakeFar(q, reader.Column(v), reader.vocab, target, v < reader.vectors, smoothing); });
    } else {
      ForVectors(
          held,
          [&](int, const auto& packed) {
            if constexpr (C::MAPPED) r.Take(packed[0], smoothing);
            else r.Take(packed, smoothing);
          },
          [&](int v, const uint4& q) { r.TakeSome(q, reader.Column(v), reader.vocab, target, v < reader.vectors, smoothing); });
    }
    FirstSweep f;
    float4 most;
    ThreeZ exact;
    if constexpr (C::MAPPED) {
      most = group.All(make_float4(WarpMax(r.Largest()), WarpMax(r.LargestMagnitude()), 0.f, 0.f), MaxFour());
      exact = ZOfThree(target_logit, map.Turned(most.x), most.y);
    } else {
      exact.target = target_logit;
    }
    const double exact_z_target = exact.target;
    const float z_target = static_cast<float>(exact_z_target);
    const float z_target_low = fabsf(z_target) < INFINITY ? static_cast<float>(exact_z_target - z_target) : 0.f;
    if constexpr (C::MAPPED) {
      f.largest = map.Turned(fmaxf(most.x, map.Turned(target_logit)));
      f.others_top = fmax(exact.top, static_cast<double>(kLowest));
      f.others_max = static_cast<float>(f.others_top);
      if constexpr (C::TABLE) f.others_top = f.others_max;
      f.max_abs = fabsf(static_cast<float>(exact.magnitude));
      const float mine = [&] {
        if constexpr (C::NEAR) return r.Sum(most.x, f.others_top * kLog2EDouble);
        else return r.Sum(C::TABLE ? f.others_max : most.x);
      }();
      const float sum = WarpSum(mine), z_sum = smoothing ? WarpSum(static_cast<float>(r.SumOfZ())) : 0.f;
      const float4 total = group.All(make_float4(sum, z_sum, 0.f, 0.f), AddFour());
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

  // Largest finite |z| (as bits) and its lowest column if `largest` (`value` is what the sweep found), else the lowest column with z == value (INT_MAX: none).
  // Reads the row again from memory, before anything of it is overwritten. For few rows: those that reach the group's largest so far, and ties of the target
  // with the maximum.
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
    if constexpr (C::NEAR) {
      ForNearVectors(
          [&](int v, const uint4& q) {
            uint4 o;
            const bool taken = g.plain() && sweep.TakeNear(q, &o);
            if (taken) reader.Store(v, o);
            return taken;
          },
          [&](int v, const uint4& q) {
            uint4 o;
            const bool taken = g.plain() && sweep.TakeNearSome(q, reader.Column(v), reader.vocab, target, v < reader.vectors, &o);
            if (taken && v < reader.vectors) reader.Store(v, o);
            return taken;
          },
          some);
    } else {
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
    }
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

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_ROW_WORK_CUH_
