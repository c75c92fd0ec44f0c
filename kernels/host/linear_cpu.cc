// A call walks over its rows once: unmasked ones are gathered until a chunk is full, then the chunk's logits, their gradient in place, and the products
// with that gradient follow. Masked rows are only ever looked at by their target.
#include "kernels/host/linear_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/linear_job.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/host/cpu_launch.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/linear_plan.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/host/tensor_span.h"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {
namespace {

using Args = lg_linear_cross_entropy_args;

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kOneTile = std::int64_t{1} << 30;  // to cpu::ForRows: a tile is a range of its own
// Shorter chunks pass over the head and its gradient more often than the products hide; longer ones only take memory (tests/bench/RESULTS.md).
constexpr std::int64_t kDefaultLogitsBytes = 64 << 20;
constexpr std::int64_t kFewestDefaultRows = 256;
constexpr std::int64_t kChunkGranule = 32;

std::int64_t RoundUp(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// Rows of logits begin at a cache line; not all of them at the same place of a page, which would have a column fight for few lines of the cache.
std::int64_t LogitsStride(const Args& args) {
  const std::int64_t bytes = BytesOfType(args.logits_dtype);
  std::int64_t stride = RoundUp(args.loss.vocab_size * bytes, kLine);
  if (stride % 4096 == 0) stride += kLine;
  return stride / bytes;
}

int ThreadsOf(const Args& args, std::int64_t bytes_of_thread) {
  const double flops = static_cast<double>(args.rows) * static_cast<double>(args.loss.vocab_size) * static_cast<double>(args.width) * 6;
  constexpr double kFlopsOfElement = 64;  // in the time that a row loop takes for an element
  const std::int64_t tiles = cpu::TilesOf(args.loss.vocab_size, cpu::kTileColumns);
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
  sizes.right = std::min<std::int64_t>(256, std::max(rows, columns)) * deepest;
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

// The row loops' job over a chunk, but for its tensors.
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

struct Sizes {
  cpu::LinearScratchSizes scratch;
  std::int64_t thread_bytes;
  int threads;
  LinearMemory memory;
};
constexpr std::int64_t kArrays = 16;  // at most so many parts of the workspace, each rounded up to a line

Sizes SizesOf(const Args& args) {
  unsigned char any = 0;
  Sizes sizes;
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

int PlanWith(const Args& args, const Sizes& sizes, const char* function, lg_linear_plan* plan) {
  LinearLimits limits;
  limits.rows = args.rows;
  limits.default_rows = std::max(kFewestDefaultRows, kDefaultLogitsBytes / sizes.memory.logits_row);
  limits.granule = kChunkGranule;
  return PlanLinear(args, sizes.memory, limits, function, plan);
}

// Cuts a block of memory into parts.
class Carver {
 public:
  explicit Carver(unsigned char* at) : at_(at) {}
  unsigned char* Take(std::int64_t bytes) {
    unsigned char* const part = at_;
    at_ += RoundUp(bytes, kLine);
    return part;
  }
  template <class T>
  T* Take(std::int64_t count) {
    return count == 0 ? nullptr : reinterpret_cast<T*>(Take(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  unsigned char* at_;
};

class LinearLaunch {
 public:
  LinearLaunch(const Args& args, const Sizes& sizes, const lg_linear_plan& plan, unsigned char* workspace)
      : args_(args), whole_(MakeCpuJob(args.loss)), threads_(sizes.threads), chunk_rows_(plan.chunk_rows) {
    Carver carver(workspace);
    unsigned char* const logits = carver.Take(plan.logits_bytes);
    job_ = ChunkJob(args, logits);
    targets_ = carver.Take<std::int64_t>(chunk_rows_);
    places_ = carver.Take<std::int64_t>(chunk_rows_);
    positions_ = carver.Take<std::int64_t>(chunk_rows_);
    losses_ = carver.Take<float>(chunk_rows_);
    log_z_ = carver.Take<float>(chunk_rows_);
    upstream_ = carver.Take<float>(chunk_rows_);
    job_.targets = reinterpret_cast<const unsigned char*>(targets_);
    job_.positions = positions_;
    job_.losses = losses_;
    job_.log_z = log_z_;
    if (args.loss.upstream_stride != 0) job_.upstream = upstream_;

    linear_.weight = static_cast<const unsigned char*>(args.weight);
    linear_.dtype = args.dtype;
    linear_.weight_stride = args.weight_stride;
    linear_.bias = static_cast<const unsigned char*>(args.bias);
    linear_.columns = args.loss.vocab_size;
    linear_.width = args.width;
    linear_.places = places_;
    linear_.hidden_from = static_cast<const unsigned char*>(args.hidden);
    linear_.hidden_stride = args.hidden_stride;
    linear_.hidden = carver.Take<float>(chunk_rows_ * args.width);
    linear_.logits = logits;
    linear_.logits_dtype = args.logits_dtype;
    linear_.logits_stride = LogitsStride(args);
    linear_.losses = losses_;
    linear_.grad_hidden = static_cast<unsigned char*>(args.grad_hidden);
    linear_.grad_hidden_stride = args.grad_hidden_stride;
    if (args.grad_hidden != nullptr) linear_.grad_hidden_sum = carver.Take<float>(chunk_rows_ * args.width);
    linear_.grad_weight = static_cast<unsigned char*>(args.grad_weight);
    linear_.grad_weight_stride = args.grad_weight_stride;
    linear_.grad_bias = static_cast<unsigned char*>(args.grad_bias);
    linear_.head_grad_dtype = args.head_grad_dtype;
    linear_.accumulate = args.accumulate != 0;
    if (args.head_grad_dtype != LG_FP32 && chunk_rows_ < args.rows) {
      if (args.grad_weight != nullptr) linear_.weight_sum = carver.Take<float>(linear_.columns * args.width);
      if (args.grad_bias != nullptr) linear_.bias_sum = carver.Take<float>(linear_.columns);
    }
    linear_.grad_scale = job_.grad_scale;
    linear_.upstream = job_.upstream;
    linear_.upstream_stride = job_.upstream_stride;
    for (int thread = 0; thread < threads_; ++thread) {
      const cpu::LinearScratchSizes& parts = sizes.scratch;
      float* const left = carver.Take<float>(parts.left);
      float* const right = carver.Take<float>(parts.right);
      float* const left_floats = carver.Take<float>(parts.left_floats);
      float* const right_floats = carver.Take<float>(parts.right_floats);
      own_[thread].scratch = {left, right, left_floats, right_floats, carver.Take<float>(parts.tile)};
      launch_.threads[thread].scratch = CarveRowScratch(job_, carver.Take(static_cast<std::int64_t>(RowScratchBytes(job_))));
    }
    launch_.variant = &cpu::ChosenVariant();
    launch_.job = &job_;
  }
  LinearLaunch(const LinearLaunch&) = delete;
  LinearLaunch& operator=(const LinearLaunch&) = delete;

  void Run(LossPurpose purpose) {
    CounterBlock* const block = AttachGauge(args_.loss, purpose, &job_);
    const Denominator denominator = DenominatorOf(args_.loss, whole_, purpose);
    job_.denominator = linear_.denominator = denominator.value;
    SetSignals(block != nullptr);
    std::int64_t live = 0;
    for (std::int64_t row = 0; row < args_.rows; ++row) {
      TargetKind kind;
      TargetOf(whole_, row, &kind);
      live += kind == TargetKind::kLive;
    }
    std::int64_t done = 0;
    while (next_row_ < args_.rows) {
      Gather();
      if (linear_.rows == 0) break;  // what is left is masked
      linear_.first_chunk = done == 0;
      done += linear_.rows;
      linear_.last_chunk = done == live;
      RunChunk();
    }
    ClearHead(live == 0 ? 0 : linear_.columns);
    LaunchCounters total = passed_;
    for (int thread = 0; thread < threads_; ++thread) Merge(launch_.threads[thread].counters, &total);
    AddSignals(live, &total);
    FinishLaunch(args_.loss, job_, denominator, total, block);
  }

 private:
  struct alignas(64) Own {
    cpu::LinearScratch scratch{};
    cpu::LinearSums sums;
  };

  void SetSignals(bool counted) {
    linear_.hidden_signal = counted && args_.grad_hidden != nullptr;
    if (!counted || args_.grad_weight == nullptr || args_.loss.upstream_stride != 0) return;
    const double upstream = args_.loss.upstream != nullptr ? static_cast<double>(*args_.loss.upstream) : 1.0;
    linear_.head_restore = static_cast<float>(linear_.denominator / (upstream * linear_.grad_scale));
    linear_.head_signal = std::isfinite(linear_.head_restore) && linear_.head_restore != 0;
  }

  // What no row went into is a gradient of 0, whatever the denominator.
  void AddSignals(std::int64_t live, LaunchCounters* total) const {
    bool hidden = linear_.hidden_signal, head = live != 0 ? linear_.head_signal : job_.signals && args_.grad_weight != nullptr && args_.loss.upstream_stride == 0;
    for (int thread = 0; thread < threads_; ++thread) {
      const cpu::LinearSums& sums = own_[thread].sums;
      hidden &= !sums.hidden_is_partial;
      head &= !sums.head_is_nonfinite;
      total->hidden_grad_sq_sum = lg_fixed128_add(total->hidden_grad_sq_sum, sums.hidden_squares);
      total->head_grad_sq_sum = lg_fixed128_add(total->head_grad_sq_sum, sums.head_squares);
      total->clamped_rows += sums.clamped_rows;
    }
    if (hidden) total->present |= LG_HAS_HIDDEN_GRAD;
    if (head) total->present |= LG_HAS_HEAD_GRAD;
  }

  // Unmasked rows from next_row_ on until a chunk is full; masked ones on the way are dealt with here.
  void Gather() {
    std::int64_t count = 0;
    for (; next_row_ < args_.rows && count < chunk_rows_; ++next_row_) {
      const std::int64_t row = next_row_;
      TargetKind kind;
      const std::int64_t target = TargetOf(whole_, row, &kind);
      if (kind != TargetKind::kLive) {
        ++passed_.tokens;
        if (kind == TargetKind::kBad) ++passed_.bad_targets;
        if (args_.loss.losses != nullptr) args_.loss.losses[row] = 0;
        if (args_.loss.log_z != nullptr) args_.loss.log_z[row] = 0;
        if (args_.grad_hidden != nullptr) {
          const std::int64_t bytes = BytesOfType(args_.dtype);
          std::memset(linear_.grad_hidden + row * args_.grad_hidden_stride * bytes, 0, static_cast<std::size_t>(args_.width * bytes));
        }
        continue;
      }
      targets_[count] = target;
      places_[count] = row;
      positions_[count] = args_.loss.positions != nullptr ? args_.loss.positions[row] : args_.loss.position_base + row;
      if (args_.loss.upstream_stride != 0) upstream_[count] = args_.loss.upstream[row * args_.loss.upstream_stride];
      ++count;
    }
    linear_.rows = count;
  }

  void RunChunk() {
    const cpu::LinearKernels& kernels = *launch_.variant->linear;
    kernels_ = &kernels;
    cpu::ForRows(threads_, linear_.rows, args_.width, this, [](void* self, int, std::int64_t begin, std::int64_t end) {
      auto& at = *static_cast<LinearLaunch*>(self);
      at.kernels_->gather(at.linear_, begin, end);
    });
    cpu::ForRows(threads_, cpu::TilesOf(linear_.columns, cpu::kTileColumns), kOneTile, this, [](void* self, int thread, std::int64_t begin, std::int64_t end) {
      auto& at = *static_cast<LinearLaunch*>(self);
      for (; begin < end; ++begin) at.kernels_->logits(at.linear_, begin, at.own_[thread].scratch);
    });
    cpu::ForRows(threads_, linear_.rows, linear_.columns, &launch_, RunCrossEntropyRows);
    for (std::int64_t i = 0; i < linear_.rows; ++i) {
      if (args_.loss.losses != nullptr) args_.loss.losses[places_[i]] = losses_[i];
      if (args_.loss.log_z != nullptr) args_.loss.log_z[places_[i]] = log_z_[i];
    }
    if (job_.grad == nullptr) return;
    cpu::ForRows(threads_, cpu::HiddenTiles(linear_) + cpu::HeadTiles(linear_), kOneTile, this,
                 [](void* self, int thread, std::int64_t begin, std::int64_t end) {
                   auto& at = *static_cast<LinearLaunch*>(self);
                   Own& own = at.own_[thread];
                   for (; begin < end; ++begin) at.kernels_->gradient(at.linear_, begin, own.scratch, &own.sums);
                 });
    if (args_.grad_hidden == nullptr) return;
    cpu::ForRows(threads_, linear_.rows, args_.width, this, [](void* self, int thread, std::int64_t begin, std::int64_t end) {
      auto& at = *static_cast<LinearLaunch*>(self);
      at.kernels_->emit(at.linear_, begin, end, &at.own_[thread].sums);
    });
  }

  // The head's gradient from row `first` on, which no chunk has written: padding, or all of it.
  void ClearHead(std::int64_t first) const {
    if (args_.accumulate != 0) return;
    const std::int64_t bytes = BytesOfType(args_.head_grad_dtype);
    if (args_.grad_weight != nullptr) {
      for (std::int64_t row = first; row < args_.columns; ++row) {
        std::memset(linear_.grad_weight + row * args_.grad_weight_stride * bytes, 0, static_cast<std::size_t>(args_.width * bytes));
      }
    }
    if (args_.grad_bias != nullptr) std::memset(linear_.grad_bias + first * bytes, 0, static_cast<std::size_t>((args_.columns - first) * bytes));
  }

  const Args& args_;
  const cpu::CrossEntropyJob whole_;  // as the caller has it: for its targets
  cpu::CrossEntropyJob job_{};        // over the chunk
  cpu::LinearJob linear_{};
  const cpu::LinearKernels* kernels_ = nullptr;
  const int threads_;
  const std::int64_t chunk_rows_;
  std::int64_t next_row_ = 0;
  LaunchCounters passed_;  // of rows that no chunk has
  std::int64_t *targets_, *places_, *positions_;
  float *losses_, *log_z_, *upstream_;
  CpuLaunch launch_;
  Own own_[cpu::kMostThreads];
};

// The caller's workspace, or one that is kept between calls.
class Workspace {
 public:
  Workspace(const Args& args, std::int64_t bytes) {
    if (args.workspace == nullptr) own_ = cpu::TakeScratch(static_cast<std::size_t>(bytes));
    data_ = args.workspace != nullptr ? static_cast<unsigned char*>(args.workspace) : own_.data;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { cpu::KeepScratch(own_); }
  unsigned char* data() const { return data_; }

 private:
  cpu::Scratch own_;
  unsigned char* data_;
};

}  // namespace

int PlanLinearOnCpu(const Args& args, const char* function, lg_linear_plan* plan) noexcept { return PlanWith(args, SizesOf(args), function, plan); }

int RunLinearOnCpu(const Args& args, LossPurpose purpose, const char* function) {
  const Sizes sizes = SizesOf(args);
  lg_linear_plan plan{};
  if (const int code = PlanWith(args, sizes, function, &plan); code != LG_OK) return code;
  const Workspace workspace(args, plan.workspace_bytes);
  LinearLaunch(args, sizes, plan, workspace.data()).Run(purpose);
  return LG_OK;
}

}  // namespace lossgauge
