// What linear cross-entropy hands to one instruction set: a chunk of compacted rows, the head, and where gradients go. Plain data only: this header
// is compiled for several instruction sets.
#ifndef LOSSGAUGE_KERNELS_CPU_LINEAR_JOB_H_
#define LOSSGAUGE_KERNELS_CPU_LINEAR_JOB_H_

#include <cstdint>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::cpu {

// Tiles of the products. They depend on nothing but the shapes, so that neither threads nor caches show in the bits.
inline constexpr std::int64_t kTileColumns = 256;  // of the head: rows of W and dW, columns of logits
inline constexpr std::int64_t kTileWidth = 512;    // of hidden states
inline constexpr std::int64_t kTileRows = 256;     // of dH
inline constexpr std::int64_t kTileDepth = 512;    // terms summed at a time, and rows of logits at a time

struct LinearJob {
  // The head. Strides of this structure are in elements.
  const unsigned char* weight;
  std::int32_t dtype;  // of weight, bias, hidden states and their gradient
  std::int64_t weight_stride;
  const unsigned char* bias;  // null = none
  std::int64_t columns;       // real ones
  std::int64_t width;
  // The chunk: `rows` rows, `places[i]` the caller's row of the i-th.
  std::int64_t rows;
  const std::int64_t* places;
  const unsigned char* hidden_from;  // the caller's
  std::int64_t hidden_stride;
  float* hidden;          // [rows, width]
  unsigned char* logits;  // [rows, columns]; then their gradient
  std::int32_t logits_dtype;
  std::int64_t logits_stride;
  const float* losses;  // [rows]; not finite = the row is in no sum
  // Gradient of the hidden states; null = not wanted.
  unsigned char* grad_hidden;  // the caller's
  std::int64_t grad_hidden_stride;
  float* grad_hidden_sum;  // [rows, width]
  // Gradient of the head, added to from chunk to chunk.
  unsigned char* grad_weight;  // null = not wanted
  std::int64_t grad_weight_stride;
  unsigned char* grad_bias;  // null = not wanted
  std::int32_t head_grad_dtype;
  bool accumulate;
  float* weight_sum;  // [columns, width] and [columns]: where 16-bit gradients are summed over several chunks; null = fp32, or one chunk
  float* bias_sum;
  bool first_chunk, last_chunk;
  // Signals: gradients are restored to upstream 1 and denominator 1.
  bool hidden_signal, head_signal;
  double denominator;
  double grad_scale;
  const float* upstream;  // [rows] with stride 1, or one scalar with stride 0; null = 1
  std::int64_t upstream_stride;
  float head_restore;
};

inline constexpr std::int64_t kRightBlock = 256;  // columns of a product's right factor that are packed at a time

// Scratch of one thread, in floats, each part aligned to a cache line. A part of 0 floats is not used.
struct LinearScratchSizes {
  std::int64_t left, right;    // packed factors
  std::int64_t left_floats;    // a tile of 16-bit weights
  std::int64_t right_floats;   // a tile of 16-bit logits
  std::int64_t tile;           // a product before it is rounded to 16 bits
};
struct LinearScratch {
  float *left, *right, *left_floats, *right_floats, *tile;
};

// What one thread found.
struct LinearSums {
  lg_fixed128 hidden_squares{}, head_squares{};
  std::uint64_t clamped_rows = 0;
  bool hidden_is_partial = false;  // a row's upstream cannot be undone
  bool head_is_nonfinite = false;
};

// The steps of one instruction set. Rows and tiles may be taken in any order by any number of threads.
struct LinearKernels {
  // hidden_from -> hidden.
  void (*gather)(const LinearJob& job, std::int64_t begin, std::int64_t end);
  // Columns [tile * kTileColumns, ...) of the logits of all rows.
  void (*logits)(const LinearJob& job, std::int64_t tile, const LinearScratch& scratch);
  // First the tiles of dH, then those of the head.
  void (*gradient)(const LinearJob& job, std::int64_t tile, const LinearScratch& scratch, LinearSums* sums);
  // grad_hidden_sum -> grad_hidden.
  void (*emit)(const LinearJob& job, std::int64_t begin, std::int64_t end, LinearSums* sums);
};

static inline std::int64_t TilesOf(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }
static inline std::int64_t HiddenTiles(const LinearJob& job) {
  return job.grad_hidden != nullptr ? TilesOf(job.rows, kTileRows) * TilesOf(job.width, kTileWidth) : 0;
}
static inline std::int64_t HeadTiles(const LinearJob& job) {
  return job.grad_weight != nullptr || job.grad_bias != nullptr ? TilesOf(job.columns, kTileColumns) : 0;
}

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_LINEAR_JOB_H_
