// What both kernels of the vocabulary-parallel loss ask of a row of this rank's columns.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_ROWS_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_ROWS_CUH_

#include "kernels/cuda/launch_end.cuh"
#include "kernels/cuda/row_work.cuh"
#include "kernels/cuda/shard_launch.h"

namespace lossgauge::cuda {

// A target that is in none of these columns: larger than any column, and far enough from the end of the integers for differences.
constexpr int kNoTarget = INT_MAX - 64;

__device__ __forceinline__ bool IsLive(const ShardLaunch& a, long long target) {
  return target != a.loss.ignore_index && target >= 0 && target < a.own.vocab_size;
}
// Its column here.
__device__ __forceinline__ int LocalTarget(const ShardLaunch& a, long long target) {
  const long long local = target - a.own.shard_offset;
  return local >= 0 && local < a.loss.vocab_size ? static_cast<int>(local) : kNoTarget;
}
// Without a target here: NaN, which no maximum takes.
template <class C>
__device__ __forceinline__ RowWork<C> WorkOnRow(const ShardLaunch& a, const Group<C>& group, const typename C::Map& map, long long row, int local) {
  using E = Element<typename C::T>;
  const unsigned char* const from = a.loss.logits + row * a.loss.row_stride_bytes;
  const float target_logit = local == kNoTarget ? NAN : E::Load(from + static_cast<long long>(local) * E::kBytes);
  return {a.loss, group, map, 0u, RowReader<typename C::T>(a.loss, row), local, target_logit};
}

// The first vectors of the row that comes next, on their way to the L2: otherwise nothing would be while a group's warps wait for each other at a row's end.
template <class C>
__device__ __forceinline__ void PrefetchRow(const ShardLaunch& a, const Group<C>& group, long long row) {
  constexpr int kBytes = C::IN_FLIGHT * C::GROUP_THREADS * 16;
  const unsigned char* const from = a.loss.logits + row * a.loss.row_stride_bytes;
  const long long bytes = static_cast<long long>(a.loss.vocab_size) * Element<typename C::T>::kBytes;
  for (int at = group.thread * 128; at < kBytes && at < bytes; at += C::GROUP_THREADS * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

union ShardRowWords {
  lg_shard_row said;
  uint4 packed[LG_SHARD_ROW_BYTES / 16];
  uint64_t words[LG_SHARD_ROW_BYTES / 8];
};
__device__ __forceinline__ Word SaltOf(const ShardLaunch& a, int sender) {
  return lg_shard_salt(a.own.step, a.own.micro_batch, static_cast<uint32_t>(sender));
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_ROWS_CUH_
