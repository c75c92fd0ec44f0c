// What a loss call hands to the CPU backend: arguments that the C ABI has
// already checked, and the table of functions that one instruction set offers.
// Plain data only: this header is compiled for several instruction sets.
#ifndef LOSSGAUGE_KERNELS_CPU_JOB_H_
#define LOSSGAUGE_KERNELS_CPU_JOB_H_

#include <cstdint>

#include "kernels/cpu/linear_job.h"
#include "kernels/cpu/shard_job.h"
#include "kernels/host/counter_block.h"

namespace lossgauge::cpu {

struct CrossEntropyJob {
  const unsigned char* logits;
  std::int32_t logits_dtype;  // LG_FP32, LG_BF16, LG_FP16
  std::int64_t columns;       // width of a row of the gradient; columns from
                              // vocab_size on are padding: never read, gradient 0
  std::int64_t vocab_size;
  std::int64_t classes;  // targets are in [0, classes): vocab_size, unless these are the columns of a shard
  std::int64_t row_stride_bytes;
  const unsigned char* targets;
  bool targets_are_int64;
  std::int64_t target_stride_bytes;
  std::int64_t ignore_index;
  double label_smoothing;
  double z_loss_weight;
  double logit_scale;
  double logit_softcap;  // 0 = off
  float* losses;         // may be null
  float* log_z;          // may be null
  unsigned char* grad;   // null = loss only
  std::int64_t grad_row_stride_bytes;
  const float* upstream;  // null = 1
  std::int64_t upstream_stride;
  double grad_scale;
  double denominator;               // what the gradient is divided by; 1 for sums
  bool stream_grad;                 // the gradient is larger than the caches: store it past them
  bool signals;                     // count what goes beyond the loss itself; false = no gauge
  const std::uint8_t* token_bytes;  // null = none
  std::int64_t token_bytes_size;
  std::int64_t position_base;
  const std::int64_t* positions;  // null = position_base + row
};

struct ScaleJob {
  unsigned char* grad;
  std::int32_t dtype;
  std::int64_t columns;
  std::int64_t row_stride_bytes;
  const float* upstream;
  std::int64_t upstream_stride;
};

// Scratch of one thread, one row long: null where a job has no use for it.
struct RowScratch {
  float* exponentials;  // exp(z - max), kept from the sweep that sums them for
                        // the sweep that writes the gradient
  double* logits;       // z, if the logits pass through scale or soft cap
  float* slopes;        // dz / dlogit, likewise
};

// Lanes that a vector loop may touch beyond a row's end in scratch memory,
// never in the caller's.
constexpr std::int64_t ScratchColumns(std::int64_t vocab_size) { return (vocab_size + 255) / 256 * 256; }

// The functions of one instruction set. Rows [begin, end); any split of the
// rows gives the same bits.
struct Variant {
  const char* name;
  void (*cross_entropy)(const CrossEntropyJob& job, std::int64_t begin, std::int64_t end, const RowScratch& scratch,
                        LaunchCounters* counters);
  void (*scale)(const ScaleJob& job, std::int64_t begin, std::int64_t end);
  // Vocabulary-parallel, before and after the exchange. job.losses, log_z and grad are of no use to the first. `bad_rows` has a count for each sender.
  void (*begin_shard)(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t begin, std::int64_t end, const RowScratch& scratch);
  void (*finish_shard)(const CrossEntropyJob& job, const ShardJob& shard, std::int64_t begin, std::int64_t end, const RowScratch& scratch,
                       LaunchCounters* counters, std::uint64_t* bad_rows);
  const LinearKernels* linear;
};

// True if the logits are used as they are.
static inline bool IsPlain(const CrossEntropyJob& job) { return job.logit_scale == 1.0 && job.logit_softcap == 0.0; }

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_JOB_H_
