#include "kernels/cuda/linear_rows.h"

#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/gradient_squares.cuh"
#include "kernels/cuda/launch_reads.cuh"
#include "kernels/host/fingerprint.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge::cuda {
namespace {

constexpr int kScanThreads = 1024, kRowThreads = 128, kCtasPerMultiprocessor = 8;

// The loss launch's arguments by value: kernels cannot follow a pointer to host memory.
struct RowsLaunch {
  LinearRows rows;
  CrossEntropyLaunch loss;
};

// An unmasked row that there is no room for. Out of line: there should be none.
static __device__ __noinline__ void CountWithoutRoom(const CrossEntropyLaunch& a, long long row, long long target) {
  const long long position = ReadPosition(a, row);
  Word* const counts = a.counters->counts;
  atomicAdd(&counts[kUnmaskedTokens], Word{1});
  atomicAdd(&counts[kNonfiniteRows], Word{1});
  atomicAdd(&counts[kTargetFingerprint], static_cast<Word>(lg_target_hash(target)));
  atomicAdd(&counts[kMaskFingerprint], static_cast<Word>(lg_position_hash(position, target)));
  atomicMax(&a.counters->first_nonfinite_row, kPlaceMask + 1 - InPlaceRange(position));
}

__global__ void __launch_bounds__(kScanThreads) Compact(const __grid_constant__ RowsLaunch a) {
  __shared__ int of_warps[2][kScanThreads / 32];
  __shared__ int bad_rows;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  if (t == 0) bad_rows = 0;
  int taken = 0;
  unsigned bad = 0;
  const auto read = [&](int row) { return row < a.rows.rows ? ReadTarget(a.loss, row) : a.loss.ignore_index; };
  long long next = read(t);
  for (int base = 0, turn = 0; base < a.rows.rows; base += kScanThreads, turn ^= 1) {
    const int row = base + t;
    const long long target = next;
    next = read(row + kScanThreads);  // on its way during this turn
    const bool unmasked = row < a.rows.rows && IsUnmasked(a.loss, target);
    bad += row < a.rows.rows && !unmasked && target != a.loss.ignore_index;
    const unsigned lanes = __ballot_sync(~0u, unmasked);
    if (lane == 0) of_warps[turn][warp] = __popc(lanes);
    __syncthreads();  // one a turn: the other half is written only behind the next one
    const int of_lane = of_warps[turn][lane];
    const int before = __reduce_add_sync(~0u, lane < warp ? of_lane : 0);
    const int slot = taken + before + __popc(lanes & ((1u << lane) - 1));
    if (row < a.rows.rows) a.rows.slot_of[row] = unmasked ? slot : -1;
    if (unmasked) a.rows.row_of[slot] = row;
    if (unmasked && slot >= a.rows.most_rows && a.loss.counters != nullptr) CountWithoutRoom(a.loss, row, target);
    taken += __reduce_add_sync(~0u, of_lane);
  }
  bad = __reduce_add_sync(~0u, bad);
  if (lane == 0 && bad != 0) atomicAdd(&bad_rows, static_cast<int>(bad));
  __syncthreads();
  if (t != 0) return;
  const int count = min(taken, a.rows.most_rows);
  a.rows.taken->count = count;
  a.rows.taken->denominator = taken;
  if (count < taken) {
    atomicOr(&a.loss.scratch->nonfinite, 1u);
    atomicOr(&a.loss.scratch->unmasked, 1u);
    if (a.loss.counters != nullptr) atomicOr(&a.loss.counters->absent, Word{LG_HAS_HEAD_GRAD});
  }
  if (a.loss.counters != nullptr) {
    const int left_out = a.rows.rows - count;
    if (left_out != 0) atomicAdd(&a.loss.counters->counts[kTokens], static_cast<Word>(left_out));
    if (bad_rows != 0) atomicAdd(&a.loss.counters->counts[kBadTargets], static_cast<Word>(bad_rows));
  }
}

// A row of `bytes` from `from`, or zeros (null), to `to`; both aligned to `Unit`.
template <class Unit>
__device__ __forceinline__ void CopyRow(unsigned char* to, const unsigned char* from, int bytes) {
  const Unit* source = reinterpret_cast<const Unit*>(from);
  Unit* target = reinterpret_cast<Unit*>(to);
  for (int i = threadIdx.x; i < bytes / static_cast<int>(sizeof(Unit)); i += kRowThreads) target[i] = source != nullptr ? source[i] : Unit{};
}

template <class Unit>
__global__ void __launch_bounds__(kRowThreads) Gather(const __grid_constant__ RowsLaunch a, int begin, int element_bytes) {
  const int in_chunk = blockIdx.x, slot = begin + in_chunk, count = a.rows.taken->count;
  const int row = slot < count ? a.rows.row_of[slot] : -1;
  const long long bytes = static_cast<long long>(a.rows.width) * element_bytes;
  CopyRow<Unit>(a.rows.chunk_hidden + in_chunk * bytes, row < 0 ? nullptr : a.rows.hidden + row * a.rows.hidden_stride_bytes, static_cast<int>(bytes));
  if (threadIdx.x != 0) return;
  a.rows.chunk_targets[in_chunk] = row < 0 ? -1 : static_cast<int>(ReadTarget(a.loss, row));
  a.rows.chunk_positions[in_chunk] = row < 0 ? 0 : ReadPosition(a.loss, row);
  if (a.rows.chunk_upstream != nullptr) a.rows.chunk_upstream[in_chunk] = row < 0 ? 0.f : a.loss.upstream[row * a.loss.upstream_stride];
  // The loss kernel counts every row of the chunk as a token.
  if (in_chunk == 0 && a.loss.counters != nullptr) {
    const long long rows = max(0, min(count - begin, static_cast<int>(gridDim.x)));
    const long long surplus = static_cast<long long>(gridDim.x) - rows;
    if (surplus != 0) atomicAdd(&a.loss.counters->counts[kTokens], static_cast<Word>(-surplus));
  }
}

template <class T, class Unit>
__global__ void __launch_bounds__(kRowThreads) Scatter(const __grid_constant__ RowsLaunch a, int begin) {
  using E = Element<T>;
  const int in_chunk = blockIdx.x, slot = begin + in_chunk;
  if (slot >= a.rows.taken->count) return;
  const int row = a.rows.row_of[slot];
  if (threadIdx.x == 0) {
    if (a.rows.losses != nullptr) a.rows.losses[row] = a.rows.chunk_losses[in_chunk];
    if (a.rows.log_z != nullptr) a.rows.log_z[row] = a.rows.chunk_log_z[in_chunk];
  }
  if (a.rows.grad_hidden == nullptr) return;
  const int bytes = a.rows.width * E::kBytes;
  const unsigned char* const from = a.rows.chunk_hidden + static_cast<long long>(in_chunk) * bytes;
  CopyRow<Unit>(a.rows.grad_hidden + row * a.rows.grad_hidden_stride_bytes, from, bytes);
  if (a.loss.counters == nullptr || !a.rows.counts_hidden || !isfinite(a.rows.chunk_losses[in_chunk])) return;  // signals are of finite rows
  double squares = 0.;
  for (int i = threadIdx.x; i < a.rows.width; i += kRowThreads) {
    const double x = E::Load(from + static_cast<long long>(i) * E::kBytes);
    squares += x * x;
  }
  squares = CtaSum<kRowThreads>(squares);
  if (threadIdx.x != 0) return;
  if (!Restore(ReadScale(a.loss, row), ReadDenominator(a.loss), &squares)) {
    atomicOr(&a.loss.counters->absent, Word{LG_HAS_HIDDEN_GRAD});
  } else if (squares < INFINITY) {
    SquaresSum sum;
    sum.Add(squares);
    sum.AddTo(a.loss.counters, kHiddenGradSqSum);
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) Clear(const __grid_constant__ RowsLaunch a) {
  using E = Element<T>;
  for (int row = blockIdx.x; row < a.rows.rows; row += gridDim.x) {
    const int slot = a.rows.slot_of[row];
    if (slot >= 0 && slot < a.rows.most_rows) continue;
    const float value = slot < 0 ? 0.f : NAN;
    if (threadIdx.x == 0) {
      if (a.rows.losses != nullptr) a.rows.losses[row] = value;
      if (a.rows.log_z != nullptr) a.rows.log_z[row] = value;
    }
    if (a.rows.grad_hidden == nullptr) continue;
    unsigned char* const to = a.rows.grad_hidden + row * a.rows.grad_hidden_stride_bytes;
    const uint32_t packed = E::Pack(value, value);
    for (int i = threadIdx.x; i < a.rows.width; i += kRowThreads) {
      if constexpr (E::kBytes == 2) reinterpret_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(packed);
      else reinterpret_cast<uint32_t*>(to)[i] = packed;
    }
  }
}

RowsLaunch MakeRowsLaunch(const LinearRows& a) { return {a, *a.loss}; }

// Rows of the tensor and of the chunk begin at multiples of 16 bytes.
bool HasVectors(const LinearRows& a, const unsigned char* tensor, long long stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor) % 16 == 0 && stride_bytes % 16 == 0 && a.width * BytesOfType(a.dtype) % 16 == 0;
}

template <class T>
void LaunchScatter(const RowsLaunch& launch, int begin, int rows, cudaStream_t stream) {
  const LinearRows& a = launch.rows;
  using Scalar = typename std::conditional<Element<T>::kBytes == 2, unsigned short, unsigned>::type;
  const unsigned ctas = static_cast<unsigned>(rows);
  if (HasVectors(a, a.grad_hidden, a.grad_hidden_stride_bytes)) Scatter<T, uint4><<<ctas, kRowThreads, 0, stream>>>(launch, begin);
  else Scatter<T, Scalar><<<ctas, kRowThreads, 0, stream>>>(launch, begin);
}

}  // namespace

cudaError_t CompactRows(const LinearRows& a, cudaStream_t stream) {
  Compact<<<1, kScanThreads, 0, stream>>>(MakeRowsLaunch(a));
  return cudaGetLastError();
}

cudaError_t ClearLeftOut(const DeviceFacts& device, const LinearRows& a, cudaStream_t stream) {
  if (a.rows == 0 || (a.losses == nullptr && a.log_z == nullptr && a.grad_hidden == nullptr)) return cudaSuccess;
  const unsigned ctas = static_cast<unsigned>(std::min(a.rows, device.multiprocessors * kCtasPerMultiprocessor));
  const RowsLaunch launch = MakeRowsLaunch(a);
  if (a.dtype == 1) Clear<__nv_bfloat16><<<ctas, kRowThreads, 0, stream>>>(launch);
  else if (a.dtype == 2) Clear<__half><<<ctas, kRowThreads, 0, stream>>>(launch);
  else Clear<float><<<ctas, kRowThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

cudaError_t GatherRows(const LinearRows& a, int begin, int rows, cudaStream_t stream) {
  const RowsLaunch launch = MakeRowsLaunch(a);
  const unsigned ctas = static_cast<unsigned>(rows);
  const int bytes = static_cast<int>(BytesOfType(a.dtype));
  if (HasVectors(a, a.hidden, a.hidden_stride_bytes)) Gather<uint4><<<ctas, kRowThreads, 0, stream>>>(launch, begin, bytes);
  else if (bytes == 2) Gather<unsigned short><<<ctas, kRowThreads, 0, stream>>>(launch, begin, bytes);
  else Gather<unsigned><<<ctas, kRowThreads, 0, stream>>>(launch, begin, bytes);
  return cudaGetLastError();
}

cudaError_t ScatterRows(const LinearRows& a, int begin, int rows, cudaStream_t stream) {
  if (a.losses == nullptr && a.log_z == nullptr && a.grad_hidden == nullptr) return cudaSuccess;
  const RowsLaunch launch = MakeRowsLaunch(a);
  if (a.dtype == 1) LaunchScatter<__nv_bfloat16>(launch, begin, rows, stream);
  else if (a.dtype == 2) LaunchScatter<__half>(launch, begin, rows, stream);
  else LaunchScatter<float>(launch, begin, rows, stream);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
