// First kernel of the vocabulary-parallel loss: one read of this rank's columns, and what the other ranks must know of each row into the contribution
// (kernels/host/vocab_parallel_contribution.h). Nothing else is kept of a row. A group of warps owns a row; the arithmetic in double and the tag are put off
// until 32 rows are read, then each lane of a warp takes one.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_BEGIN_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_BEGIN_CUH_

#include "kernels/cuda/shard_rows.cuh"

namespace lossgauge::cuda {

// What has been read of a row.
struct ReadRow {
  long long row, target;
  double z_target;                   // NaN: the target is not here
  double others_top;                 // as in FirstSweep
  float others, others_max, others_z;
  float max_abs;                     // over finite z
  bool live, has_target, target_is_first, minus_infinity;
};

// One row, by one lane.
static __device__ __noinline__ void WriteShardRow(const ShardLaunch& a, const ReadRow& r) {
  ShardRowWords out;
#pragma unroll
  for (int i = 0; i < LG_SHARD_ROW_BYTES / 8; ++i) out.words[i] = 0;
  lg_shard_row& say = out.said;
  say.max = -INFINITY;
  say.target_id = r.target;
  const double z_target = r.has_target ? r.z_target : -INFINITY;
  const bool nan = !(r.others < INFINITY) || r.others_max == INFINITY || !(z_target < INFINITY);
  if (r.live && nan) {
    say.flags = LG_SHARD_NAN;
  } else if (r.live) {
    const double others_max = r.others > 0.f ? r.others_top : -INFINITY;  // the largest is 1 of the sum
    const bool smoothing = a.loss.label_smoothing != 0.f;
    const double columns = a.loss.vocab_size;
    say.max = fmax(others_max, z_target);
    say.max_abs = r.max_abs;
    if (r.minus_infinity) say.flags |= LG_SHARD_MINUS_INFINITY;
    if (r.has_target) {
      say.flags |= LG_SHARD_HAS_TARGET;
      say.target = z_target == -INFINITY ? -INFINITY : z_target - say.max;
      if (z_target >= others_max) say.flags |= LG_SHARD_TARGET_LEADS;
      if (r.target_is_first) say.flags |= LG_SHARD_TARGET_IS_FIRST;
    }
    if (say.max == -INFINITY) {  // z - max would be NaN
      say.differences = smoothing && columns > 0. ? -INFINITY : 0.;
    } else {
      say.others = r.others > 0.f ? r.others * exp(others_max - say.max) : 0.;
      if (smoothing) say.differences = (r.others_z - columns * say.max) + (r.has_target ? z_target : 0.);
    }
  }
  say.tag = lg_shard_row_tag(SaltOf(a, static_cast<int>(a.own.sender)), r.row, out.words);
  uint4* const to = reinterpret_cast<uint4*>(a.contribution + LG_SHARD_HEADER_BYTES + r.row * LG_SHARD_ROW_BYTES);
#pragma unroll
  for (int i = 0; i < LG_SHARD_ROW_BYTES / 16; ++i) to[i] = out.packed[i];
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::CTAS) ShardBeginKernel(const __grid_constant__ ShardLaunch a) {
  __shared__ float4 scratch[C::GROUPS][C::WARPS];
  __shared__ ReadRow waiting[C::GROUPS][32];
  if (blockIdx.x == 0 && threadIdx.x < LG_SHARD_HEADER_BYTES / 8) {
    reinterpret_cast<Word*>(a.contribution)[threadIdx.x] = reinterpret_cast<const Word*>(&a.own)[threadIdx.x];
  }
  const int group_index = threadIdx.x / C::GROUP_THREADS, lane = threadIdx.x & 31;
  const Group<C> group{scratch, group_index, static_cast<int>(threadIdx.x % C::GROUP_THREADS) >> 5, lane, static_cast<int>(threadIdx.x % C::GROUP_THREADS)};
  __shared__ SharedMap<C> shared_map;
  shared_map.Make(a.loss);
  if constexpr (C::NEAR) __syncthreads();
  HeldMap<C> map = shared_map.Get(a.loss);
  const long long step = static_cast<long long>(gridDim.x) * C::GROUPS;
  const long long first = static_cast<long long>(blockIdx.x) * C::GROUPS + group_index;
  int count = 0;
  long long next_target = first < a.loss.rows ? ReadTarget(a.loss, first) : 0;
  for (long long row = first; row < a.loss.rows; row += step) {
    const long long target = next_target;
    if (row + step < a.loss.rows) {
      next_target = ReadTarget(a.loss, row + step);
      if (IsLive(a, next_target)) PrefetchRow<C>(a, group, row + step);
    }
    ReadRow r{row, target, 0., 0., 0.f, 0.f, 0.f, 0.f, IsLive(a, target), false, false, false};
    if (r.live) {
      const int local = LocalTarget(a, target);
      const RowWork<C> work = WorkOnRow<C>(a, group, map, row, local);
      const FirstSweep f = work.Reduce(nullptr);
      r.has_target = local != kNoTarget;
      r.z_target = work.Z(work.target_logit);
      r.others_top = f.others_top;
      r.others = f.others;
      r.others_max = f.others_max;
      r.others_z = f.others_z;
      r.max_abs = f.max_abs;
      r.minus_infinity = f.max_abs == INFINITY || (r.has_target && r.z_target == -INFINITY);
      if (r.has_target) {
        const float z_target = static_cast<float>(r.z_target);
        r.target_is_first = z_target > r.others_max;
        if (z_target == r.others_max) r.target_is_first = work.LookAgain(false, z_target).y == static_cast<unsigned>(local);
      }
      if (f.max_abs == INFINITY) r.max_abs = __uint_as_float(work.LookAgain(true, INFINITY).x);
    }
    if (group.warp == 0) {
      if (lane == 0) waiting[group_index][count] = r;
      if (++count == 32) {
        __syncwarp();
        WriteShardRow(a, waiting[group_index][lane]);
        __syncwarp();
        count = 0;
      }
    }
  }
  if (group.warp == 0) {
    __syncwarp();
    if (lane < count) WriteShardRow(a, waiting[group_index][lane]);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_BEGIN_CUH_
