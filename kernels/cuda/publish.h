// The end of a step on the device: counters become a record in the host-mapped ring.
#ifndef LOSSGAUGE_KERNELS_CUDA_PUBLISH_H_
#define LOSSGAUGE_KERNELS_CUDA_PUBLISH_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_counters.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::cuda {

// Lives in device memory, so that a replayed graph counts on by itself.
struct PublisherState {
  static constexpr unsigned long long kClosed = ~0ull;
  std::int64_t step;                // the one being built
  unsigned long long publications;  // records so far; kClosed: the ring is gone, nothing is to be published any more
  unsigned long long slot;          // where the next one goes: publications % slot_count, without a division on the device
  lg_step_record totals[LG_BLOCK_COUNT];  // only their total_ words
};

struct HandedScalar {
  const void* pointer;  // device memory, read when the step ends; null = `value`
  double value;
  int is_fp64;  // of *pointer
  int given;
};

struct PublishLaunch {
  DeviceCounters* counters;  // [block_count]
  PublisherState* state;
  unsigned char* slots;          // mapped host memory
  unsigned long long* cursor;    // likewise
  long long* published_step;     // likewise
  unsigned long long segment_share;  // of each record's checksum
  unsigned slot_count;
  int block_count;
  unsigned long long phase;
  long long set_step;  // -1 = none
  long long boot_minus_global_ns;  // CLOCK_BOOTTIME - the device's global timer
  HandedScalar grad_norm, learning_rate, denominator;
  int reported_given;
  double reported_value, reported_auxiliary;
  unsigned long long reported_dtype, reported_interval;
};

cudaError_t LaunchPublish(const PublishLaunch& launch, cudaStream_t stream);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_PUBLISH_H_
