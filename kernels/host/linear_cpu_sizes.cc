#include "kernels/host/linear_cpu_sizes.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge {
namespace {

using Args = lg_linear_cross_entropy_args;

// Shorter chunks pass over the head and its gradient more often than the products hide; longer ones only take memory (tests/bench/RESULTS.md).
constexpr std::int64_t kDefaultLogitsBytes = 32 << 20;
constexpr std::int64_t kFewestDefaultRows = 256;
constexpr std::int64_t kChunkGranule = 32;

int ThreadsOf(const Args& args, std::int64_t bytes_of_thread) {
  const double flops = static_cast<double>(args.rows) * static_cast<double>(args.loss.vocab_size) * static_cast<double>(args.width) * 6;
  constexpr double kFlopsOfElement = 64;  // in the time that a row loop takes for an element
  const std::int64_t tiles = std::max<std::int64_t>(1, cpu::TilesOf(args.loss.vocab_size, cpu::kTileColumns));
  const auto share = static_cast<std::int64_t>(std::min(flops / kFlopsOfElement / static_cast<double>(tiles), 1e15));
  std::int64_t threads = cpu::ThreadsFor(args.loss.threads, tiles, share);
  // Scratch of threads shall not crowd out the logits.
  if (args.memory_budget != 0) threads = std::min(threads, args.memory_budget / 2 / bytes_of_thread);
  return static_cast<int>(std::max<std::int64_t>(1, threads));
}

// What one thread works in.
cpu::LinearScratchSizes ScratchOf(const Args& args) {
  const std::int64_t width = std::min(cpu::kTileWidth, args.width), columns = std::min(cpu::kTileColumns, args.loss.vocab_size);
  const std::int64_t deep_columns = std::min(cpu::kTileDepth, args.loss.vocab_size), rows = std::min(cpu::kTileDepth, std::max<std::int64_t>(1, args.rows));
  const std::int64_t deepest = std::max({width, deep_columns, rows});
  cpu::LinearScratchSizes sizes{};
  sizes.left = std::max(columns, width) * deepest;
  sizes.right = std::min(cpu::kRightBlock, std::max(rows, columns)) * deepest;
  if (args.dtype != LG_FP32) sizes.left_floats = std::max(columns, deep_columns) * width;
  if (args.logits_dtype != LG_FP32) sizes.right_floats = std::max(std::min(cpu::kTileRows, rows) * deep_columns, rows * columns);
  if (args.logits_dtype != LG_FP32 || args.head_grad_dtype != LG_FP32) sizes.tile = columns * std::max(rows, width);
  return sizes;
}
std::int64_t BytesOf(const cpu::LinearScratchSizes& sizes) {
  std::int64_t bytes = 0;
  for (const std::int64_t part : {sizes.left, sizes.right, sizes.left_floats, sizes.right_floats, sizes.tile}) bytes += RoundUp(part * 4, kLine);
  return bytes;
}

constexpr std::int64_t kArrays = 16;  // at most so many parts of the workspace, each rounded up to a line

}  // namespace

// Rows of logits begin at a cache line; not all of them at the same place of a page, which would have a column fight for few lines of the cache.
std::int64_t LogitsStride(const Args& args) {
  const std::int64_t bytes = BytesOfType(args.logits_dtype);
  std::int64_t stride = RoundUp(args.loss.vocab_size * bytes, kLine);
  if (stride % 4096 == 0) stride += kLine;
  return stride / bytes;
}

cpu::CrossEntropyJob ChunkJob(const Args& args, unsigned char* logits) {
  cpu::CrossEntropyJob job = MakeCpuJob(args.loss);
  job.logits = logits;
  job.grad = WantsGradient(args) ? logits : nullptr;
  job.columns = job.vocab_size;
  job.row_stride_bytes = job.grad_row_stride_bytes = LogitsStride(args) * BytesOfType(args.logits_dtype);
  job.targets_are_int64 = true;
  job.target_stride_bytes = sizeof(std::int64_t);
  job.upstream_stride = args.loss.upstream_stride != 0 ? 1 : 0;
  return job;
}

LinearSizes SizesOf(const Args& args) {
  unsigned char any = 0;
  LinearSizes sizes;
  sizes.scratch = ScratchOf(args);
  sizes.thread_bytes = BytesOf(sizes.scratch) + RoundUp(static_cast<std::int64_t>(RowScratchBytes(ChunkJob(args, &any))), kLine);
  sizes.threads = ThreadsOf(args, sizes.thread_bytes);
  LinearMemory& memory = sizes.memory;
  memory.logits_row = LogitsStride(args) * BytesOfType(args.logits_dtype);
  memory.other_row = args.width * 4 * (args.grad_hidden != nullptr ? 2 : 1) + 3 * 8 + 3 * 4;
  memory.fixed = sizes.thread_bytes * sizes.threads + kArrays * kLine;
  if (args.head_grad_dtype != LG_FP32) {
    if (args.grad_weight != nullptr) memory.several_chunks += args.loss.vocab_size * args.width * 4;
    if (args.grad_bias != nullptr) memory.several_chunks += args.loss.vocab_size * 4;
  }
  return sizes;
}

int PlanWith(const Args& args, const LinearSizes& sizes, std::int64_t logits_row, const char* function, lg_linear_plan* plan) noexcept {
  LinearLimits limits;
  limits.rows = args.rows;
  limits.default_rows = std::max(kFewestDefaultRows, kDefaultLogitsBytes / logits_row);
  limits.granule = kChunkGranule;
  return PlanLinear(args, sizes.memory, limits, function, plan);
}

}  // namespace lossgauge
