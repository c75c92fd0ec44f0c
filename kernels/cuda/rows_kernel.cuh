// The plain kernel: a group of warps owns a row. For every case that ring and stage kernels do not take: devices before sm_90, soft cap, scales of short rows of
// fp32 or fp16 logits, rows that are too long, buffers of another alignment.
//
// VECTORS > 0: the row is held in registers (at most WARPS * 32 * VECTORS vectors): one read, one write. VECTORS = 0: it is read twice, for the
// loss alone once: maximum and sum are kept together and rescaled when the maximum rises.
//
// A row costs a few dozen instructions of double arithmetic for its loss and signals. They are put off until a warp has 32 rows, then each lane takes
// one: for short rows they would otherwise take as long as the row.
#ifndef LOSSGAUGE_KERNELS_CUDA_ROWS_KERNEL_CUH_
#define LOSSGAUGE_KERNELS_CUDA_ROWS_KERNEL_CUH_

#include <climits>

#include "kernels/cuda/launch_end.cuh"
#include "kernels/cuda/row_work.cuh"

namespace lossgauge::cuda {

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
__global__ void __launch_bounds__(C::THREADS, C::TABLE || C::NEAR ? 3 : C::MAPPED ? 2 : 1) RowsKernel(const __grid_constant__ CrossEntropyLaunch a) {
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
  // Read once for all, who must agree which row takes another look, where they wait for each other: launches on other streams raise it meanwhile.
  __shared__ unsigned largest_before;
  if (C::SIGNALS && threadIdx.x == 0) largest_before = static_cast<unsigned>(a.counters->worst_logit.high >> 32) & 0x7fffffffu;
  __shared__ SharedMap<C> shared_map;
  shared_map.Make(a);
  __syncthreads();
  const int group_index = threadIdx.x / C::GROUP_THREADS, lane = threadIdx.x & 31;
  const Group<C> group{scratch, group_index, static_cast<int>(threadIdx.x % C::GROUP_THREADS) >> 5, lane,
                       static_cast<int>(threadIdx.x % C::GROUP_THREADS)};
  HeldMap<C> map = shared_map.Get(a);
  const double denominator = ReadDenominator(a);
  unsigned best_abs = C::SIGNALS ? largest_before : 0u;

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
      if constexpr (C::VECTORS > 0 || C::NEAR) {
        const unsigned char* const next = a.logits + (row + step) * a.row_stride_bytes;
        // Of a row that is read twice only what is wanted first: the L2 has to keep the rows that are being read.
        const int bytes = C::VECTORS > 0 ? a.vocab_size * Element<T>::kBytes
                                         : static_cast<int>(min(static_cast<long long>(a.vocab_size) * Element<T>::kBytes, 16ll * C::IN_FLIGHT * C::GROUP_THREADS));
        for (int at = group.thread * 128; at < bytes; at += C::GROUP_THREADS * 128)
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
        g.target *= map.SlopeAt(work.target_logit);
        emitted = work.WriteGradient(held, TableGradient<C::SIGNALS>(g, map, CapTable(a, table), static_cast<float>(map.fall())), f.sums.target, factor.restore);
      } else if constexpr (C::MAPPED) {
        const auto reference = C::MAP == LogitMap::kScale ? map.At(map.Turned(f.largest)) : map.AtLog2(g.max * kLog2EDouble);
        // The gradient's exponentials are relative to the largest z as rounded to fp32.
        const float unit = C::MAP == LogitMap::kScale ? ExpExact(work.Z(f.largest) - g.max) : 1.f;
        g.target *= map.SlopeAt(work.target_logit);
        using Far = MappedGradient<T, C::MAP, C::SIGNALS>;
        Far far(g, map, reference, unit);
        if constexpr (C::NEAR) emitted = work.WriteGradient(held, NearGradient<T, C::SIGNALS, Far>(map, g, g.max, far), f.sums.target, factor.restore);
        else emitted = work.WriteGradient(held, far, f.sums.target, factor.restore);
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
