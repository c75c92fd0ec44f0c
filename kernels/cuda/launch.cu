#include "kernels/cuda/launch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/count_unmasked.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/logit_map.h"
#include "kernels/cuda/same_alignment.h"
#include "kernels/cuda/stage_plan.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge::cuda {
namespace {

// Most vectors of a packed row, longest swept row in bytes of shared memory, for each shape of the stage kernel.
constexpr int kMostStageVectors[kStageShapes] = {64, 128, 256, 528, 1536, 2080};
// Longest row, in bytes, for each shape of the ring kernel: with more, too little of the ring is left for the next row (measured), and another CTA joins in.
constexpr long long kLongestRingRow[kRingShapes] = {144 << 10, 272 << 10, 320 << 10, 696 << 10};

// A scale is but another slope of the exponentials, unless it turns the row round or makes exponents overflow.
bool IsSlope(double scale) { return scale > 1e-6 && scale <= 2.; }
ExponentSlopes MakeSlopes(double scale) {
  const double slope = scale * 1.4426950408889634;
  const auto exact = static_cast<float>(slope);
  return {exact, static_cast<float>(std::exp2(std::floor(std::log2(slope)) - 1)), static_cast<float>(3e5 / slope), static_cast<float>(slope - exact),
          static_cast<float>(-200. / scale)};
}

LogitMap PlanMap(int dtype, CrossEntropyLaunch* a) {
  const LogitMap map = MapOf(*a);
  constexpr double kHighestInTable = 60.;  // sums of e^z stay within fp32
  if (map != LogitMap::kCap || dtype != 1 || a->logit_softcap > kHighestInTable) return map;
  const auto magnitude = [](double x) {  // bits of the bf16 number at or below
    const float f = static_cast<float>(x);
    std::uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits >> 16;
  };
  // What z loses below and above is less than a rounding of e^z.
  const double scale = std::fabs(a->logit_scale);
  a->cap = {magnitude(2.4e-7 / scale), magnitude(10.4 * a->logit_softcap / scale) + 1};
  return a->cap.high - a->cap.low < kMostCapEntries ? LogitMap::kTable : LogitMap::kCap;
}

// How many CTAs (or clusters) of a kernel run at once on a device. Asked once for each kernel and device.
cudaError_t Resident(const DeviceFacts& device, const KernelEntry& entry, int* count) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::pair<const void*, int> key(entry.kernel, device.ordinal);
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto it = known.find(key);
    if (it != known.end()) {
      *count = it->second;
      return cudaSuccess;
    }
  }
  cudaError_t error = cudaSuccess;
  if (entry.shared_bytes > 0) {
    error = cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, entry.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  if (entry.cluster == 1) {
    int per_multiprocessor = 0;
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, entry.kernel, entry.threads, static_cast<size_t>(entry.shared_bytes));
    *count = per_multiprocessor * device.multiprocessors;
  } else {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(entry.cluster) * 64);
    config.blockDim = dim3(static_cast<unsigned>(entry.threads));
    config.dynamicSmemBytes = static_cast<size_t>(entry.shared_bytes);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(entry.cluster), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    error = cudaOccupancyMaxActiveClusters(count, entry.kernel, &config);
  }
  if (error != cudaSuccess) return error;
  if (*count == 0) return cudaErrorLaunchOutOfResources;
  std::lock_guard<std::mutex> lock(mutex);
  known[key] = *count;
  return cudaSuccess;
}

cudaError_t Launch(const KernelEntry& entry, int grid, cudaStream_t stream, void** arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(entry.threads));
  config.dynamicSmemBytes = static_cast<size_t>(entry.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(entry.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = entry.cluster > 1 ? 1 : 0;
  return cudaLaunchKernelExC(&config, entry.kernel, arguments);
}

cudaError_t LaunchRing(const DeviceFacts& device, int dtype, const CrossEntropyLaunch& a, int shape, cudaStream_t stream) {
  const KernelEntry& entry = RingEntry(dtype, shape, a.counters != nullptr, a.label_smoothing != 0.f, a.logit_scale != 1.);
  int clusters = 0;
  if (const cudaError_t error = Resident(device, entry, &clusters); error != cudaSuccess) return error;
  clusters = static_cast<int>(std::min<long long>(clusters, a.rows));
  void* arguments[] = {const_cast<CrossEntropyLaunch*>(&a)};
  return Launch(entry, clusters * entry.cluster, stream, arguments);
}

// False: the rows are too long.
bool PlanStages(const CrossEntropyLaunch& a, int dtype, StagePlan* plan, int* shape) {
  const int bytes = static_cast<int>(BytesOfType(dtype)), elements = 16 / bytes;
  const auto aligned = [&](int to) { return reinterpret_cast<std::uintptr_t>(a.logits) % to == 0 && a.row_stride_bytes % to == 0; };
  // Of a swept row, from the multiple of 128 bytes before it.
  const auto vectors = [&](bool packed) {
    return (static_cast<long long>(a.vocab_size) + (packed || aligned(128) ? 0 : 128 / bytes - 1) + elements - 1) / elements;
  };
  for (*shape = aligned(16) ? 0 : 3; vectors(kStageShape[*shape].packed) > kMostStageVectors[*shape];) {
    if (++*shape == kStageShapes) return false;
  }
  const StageShape& s = kStageShape[*shape];
  plan->vectors = static_cast<int>(vectors(s.packed));
  plan->whole = a.vocab_size % elements == 0;
  plan->joined = a.row_stride_bytes == plan->vectors * 16ll;
  plan->pitch = plan->vectors * 16;
  plan->stage_bytes = (s.rows * plan->pitch + 127) / 128 * 128;
  plan->groups = MostGroups(s);
  const int stages = kStageBytesForRows / plan->stage_bytes;
  if (s.feeds_itself()) {
    plan->groups = std::min(plan->groups, stages / 2);
    plan->stages = std::min(kMostStages, stages) / plan->groups;
    plan->batch = kFeedRows;
  } else {
    plan->stages = std::min(kMostStages, stages);
    plan->groups = std::max(1, std::min(plan->groups, plan->stages - 2));  // two stages are on their way at least
    plan->batch = std::max(1, std::min(32, 32768 / plan->pitch));  // a ticket's latency is hidden behind the batch before it
  }
  return true;
}

cudaError_t LaunchStages(const DeviceFacts& device, int dtype, const CrossEntropyLaunch& a, int shape, StagePlan plan, cudaStream_t stream) {
  KernelEntry entry = StageEntry(dtype, shape, a.counters != nullptr, a.label_smoothing != 0.f, a.logit_scale != 1.);
  int ctas = 0;
  if (const cudaError_t error = Resident(device, entry, &ctas); error != cudaSuccess) return error;
  const StageShape& s = kStageShape[shape];
  entry.threads = (ServiceWarps(s) + plan.groups * s.warps) * 32;
  void* arguments[] = {const_cast<CrossEntropyLaunch*>(&a), &plan};
  return Launch(entry, static_cast<int>(std::min<long long>(ctas, (a.rows + s.rows - 1) / s.rows)), stream, arguments);
}

cudaError_t LaunchRows(const DeviceFacts& device, const KernelEntry& entry, const CrossEntropyLaunch& a, cudaStream_t stream) {
  void* arguments[] = {const_cast<CrossEntropyLaunch*>(&a)};
  return LaunchPersistent(device, entry, a.rows, arguments, stream);
}

}  // namespace

const KernelEntry& RingEntry(int dtype, int shape, bool signals, bool smoothing, bool scaled) {
  if (scaled && dtype == 1) return ScaledRingEntryBf16(shape, signals, smoothing);
  if (scaled) return dtype == 2 ? ScaledRingEntryFp16(shape, signals, smoothing) : ScaledRingEntryFp32(shape, signals, smoothing);
  if (dtype == 1) return RingEntryBf16(shape, signals, smoothing);
  return dtype == 2 ? RingEntryFp16(shape, signals, smoothing) : RingEntryFp32(shape, signals, smoothing);
}
const KernelEntry& StageEntry(int dtype, int shape, bool signals, bool smoothing, bool scaled) {
  if (scaled) return ScaledStageEntryBf16(shape, signals, smoothing);
  if (dtype == 1) return StageEntryBf16(shape, signals, smoothing);
  return dtype == 2 ? StageEntryFp16(shape, signals, smoothing) : StageEntryFp32(shape, signals, smoothing);
}
const KernelEntry& RowsEntry(int dtype, int shape, bool signals) {
  if (dtype == 1) return RowsEntryBf16(shape, signals);
  return dtype == 2 ? RowsEntryFp16(shape, signals) : RowsEntryFp32(shape, signals);
}
const KernelEntry& MappedRowsEntry(int dtype, LogitMap map, bool few_columns, bool signals) {
  if (dtype == 1) return MappedRowsEntryBf16(map, few_columns, signals);
  return dtype == 2 ? MappedRowsEntryFp16(map, few_columns, signals) : MappedRowsEntryFp32(map, few_columns, signals);
}
int RowsCapacity(int shape) {
  constexpr int kCapacity[kRowsShapes] = {0, 1 * 32 * 4, 2 * 32 * 8, 4 * 32 * 8, 8 * 32 * 8};
  return kCapacity[shape];
}

namespace {

cudaError_t LaunchKernelFor(const DeviceFacts& device, int dtype, CrossEntropyLaunch a, cudaStream_t stream) {
  const bool signals = a.counters != nullptr;
  const bool scaled = a.logit_scale != 1., mapped = a.logit_softcap != 0. || (scaled && !IsSlope(a.logit_scale));
  if (scaled && !mapped) a.slopes = MakeSlopes(a.logit_scale);
  const long long row_bytes = a.vocab_size * BytesOfType(dtype);
  // The choice does not depend on whether a gradient is wanted, unless that is aligned otherwise than the logits: the loss has the same bits either way.
  // Bulk copies, clusters and 228 KB of shared memory: sm_90, sm_100. sm_120 has the instructions but not the memory.
  const bool has_ring = device.compute_capability >= 90 && device.shared_bytes_per_cta >= 227 * 1024;
  if (has_ring && !mapped && a.rows > 0 && a.rows < (1ll << 31) && SameAlignment(a)) {
    StagePlan plan;
    int shape_of_stages;
    const bool staged = PlanStages(a, dtype, &plan, &shape_of_stages), has_stages = !scaled || dtype == 1;
    if (staged && has_stages) return LaunchStages(device, dtype, a, shape_of_stages, plan, stream);
    for (int shape = 0; shape < kRingShapes && !staged; ++shape) {
      if (row_bytes <= kLongestRingRow[shape]) return LaunchRing(device, dtype, a, shape, stream);
    }
    // Longer rows do not fit on chip beside the next one: two reads.
  }
  if (mapped || scaled) return LaunchRows(device, MappedRowsEntry(dtype, PlanMap(dtype, &a), a.vocab_size <= kFewMappedColumns, signals), a, stream);
  const int elements = 16 / static_cast<int>(BytesOfType(dtype));
  const bool aligned = reinterpret_cast<std::uintptr_t>(a.logits) % 16 == 0 && a.row_stride_bytes % 16 == 0;
  const int vectors = (a.vocab_size + (aligned ? elements - 1 : 2 * (elements - 1))) / elements;
  for (int shape = 1; shape < kRowsShapes; ++shape) {
    if (vectors <= RowsCapacity(shape)) return LaunchRows(device, RowsEntry(dtype, shape, signals), a, stream);
  }
  return LaunchRows(device, RowsEntry(dtype, 0, signals), a, stream);
}

}  // namespace

cudaError_t LaunchPersistent(const DeviceFacts& device, const KernelEntry& entry, long long rows, void** arguments, cudaStream_t stream) {
  int ctas = 0;
  if (const cudaError_t error = Resident(device, entry, &ctas); error != cudaSuccess) return error;
  const long long wanted = (rows + entry.rows_per_cta - 1) / entry.rows_per_cta;
  return Launch(entry, static_cast<int>(std::max<long long>(1, std::min<long long>(ctas, wanted))), stream, arguments);
}

cudaError_t LaunchCrossEntropy(const DeviceFacts& device, int dtype, const CrossEntropyLaunch& launch, cudaStream_t stream) {
  return EnqueueCounted(device, launch, launch.vocab_size, stream, [&] { return LaunchKernelFor(device, dtype, launch, stream); });
}

}  // namespace lossgauge::cuda
