#include "kernels/host/linear_cpu_launch.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/host/tensor_span.h"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge {
namespace {

using Args = lg_linear_cross_entropy_args;

constexpr std::int64_t kOneTile = std::int64_t{1} << 30;  // to cpu::ForRows: a tile is a range of its own

}  // namespace

LinearLaunch::LinearLaunch(const Args& args, const LinearSizes& sizes, const lg_linear_plan& plan, std::int64_t classes, unsigned char* workspace)
    : args_(args), whole_(MakeCpuJob(args.loss)), threads_(sizes.threads), chunk_rows_(plan.chunk_rows), carver_(workspace) {
  unsigned char* const logits = carver_.Take(plan.logits_bytes);
  job_ = ChunkJob(args, logits);
  whole_.classes = job_.classes = classes;
  targets_ = carver_.Take<std::int64_t>(chunk_rows_);
  places_ = carver_.Take<std::int64_t>(chunk_rows_);
  positions_ = carver_.Take<std::int64_t>(chunk_rows_);
  losses_ = carver_.Take<float>(chunk_rows_);
  log_z_ = carver_.Take<float>(chunk_rows_);
  upstream_ = carver_.Take<float>(chunk_rows_);
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
  linear_.hidden = carver_.Take<float>(chunk_rows_ * args.width);
  linear_.logits = logits;
  linear_.logits_dtype = args.logits_dtype;
  linear_.logits_stride = LogitsStride(args);
  linear_.losses = losses_;
  linear_.grad_hidden = static_cast<unsigned char*>(args.grad_hidden);
  linear_.grad_hidden_stride = args.grad_hidden_stride;
  if (args.grad_hidden != nullptr) linear_.grad_hidden_sum = carver_.Take<float>(chunk_rows_ * args.width);
  linear_.grad_weight = static_cast<unsigned char*>(args.grad_weight);
  linear_.grad_weight_stride = args.grad_weight_stride;
  linear_.grad_bias = static_cast<unsigned char*>(args.grad_bias);
  linear_.head_grad_dtype = args.head_grad_dtype;
  linear_.accumulate = args.accumulate != 0;
  if (args.head_grad_dtype != LG_FP32 && chunk_rows_ < args.rows) {
    if (args.grad_weight != nullptr) linear_.weight_sum = carver_.Take<float>(linear_.columns * args.width);
    if (args.grad_bias != nullptr) linear_.bias_sum = carver_.Take<float>(linear_.columns);
  }
  linear_.grad_scale = job_.grad_scale;
  linear_.upstream = job_.upstream;
  linear_.upstream_stride = job_.upstream_stride;
  for (int thread = 0; thread < threads_; ++thread) {
    const cpu::LinearScratchSizes& parts = sizes.scratch;
    float* const left = carver_.Take<float>(parts.left);
    float* const right = carver_.Take<float>(parts.right);
    float* const left_floats = carver_.Take<float>(parts.left_floats);
    float* const right_floats = carver_.Take<float>(parts.right_floats);
    own_[thread].scratch = {left, right, left_floats, right_floats, carver_.Take<float>(parts.tile)};
    launch_.threads[thread].scratch = CarveRowScratch(job_, carver_.Take(static_cast<std::int64_t>(RowScratchBytes(job_))));
  }
  launch_.variant = &cpu::ChosenVariant();
  launch_.job = &job_;
}

int LinearLaunch::Run(LossPurpose purpose) {
  CounterBlock* const block = AttachGauge(args_.loss, purpose, &job_);
  const Denominator denominator = DenominatorOf(args_.loss, whole_, purpose);
  job_.denominator = linear_.denominator = denominator.value;
  SetSignals(block != nullptr);
  const std::int64_t live = CountLive(whole_, args_.rows), chunks = ChunksOf(live);
  std::int64_t done = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    Gather();
    linear_.first_chunk = done == 0;
    done += linear_.rows;
    linear_.last_chunk = done == live;
    if (const int code = RunChunk(chunk); code != LG_OK) return code;
  }
  Gather();  // masked rows behind the last chunk
  ClearHead(live == 0 ? 0 : linear_.columns);
  LaunchCounters total = passed_;
  for (int thread = 0; thread < threads_; ++thread) Merge(launch_.threads[thread].counters, &total);
  AddSignals(live, &total);
  AddCounts(&total);
  FinishLaunch(args_.loss, job_, denominator, total, block);
  return LG_OK;
}

std::int64_t LinearLaunch::ChunksOf(std::int64_t live) const { return live / chunk_rows_ + (live % chunk_rows_ != 0 ? 1 : 0); }

int LinearLaunch::RunLoss(std::int64_t, std::int64_t rows) {
  cpu::ForRows(threads_, rows, linear_.columns, &launch_, RunCrossEntropyRows);
  return LG_OK;
}

void LinearLaunch::SetSignals(bool counted) {
  linear_.hidden_signal = counted && args_.grad_hidden != nullptr && OwnsHiddenGradient();
  if (!counted || args_.grad_weight == nullptr || args_.loss.upstream_stride != 0) return;
  const double upstream = args_.loss.upstream != nullptr ? static_cast<double>(*args_.loss.upstream) : 1.0;
  linear_.head_restore = static_cast<float>(linear_.denominator / (upstream * linear_.grad_scale));
  linear_.head_signal = std::isfinite(linear_.head_restore) && linear_.head_restore != 0;
}

// What no row went into is a gradient of 0, whatever the denominator.
void LinearLaunch::AddSignals(std::int64_t live, LaunchCounters* total) const {
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

void LinearLaunch::Gather() {
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

int LinearLaunch::RunChunk(std::int64_t chunk) {
  if (linear_.rows == 0) return RunLoss(chunk, 0);
  cpu::ForRows(threads_, linear_.rows, args_.width, this, [](void* self, int, std::int64_t begin, std::int64_t end) {
    auto& at = *static_cast<LinearLaunch*>(self);
    at.kernels().gather(at.linear_, begin, end);
  });
  cpu::ForRows(threads_, cpu::TilesOf(linear_.columns, cpu::kTileColumns), kOneTile, this, [](void* self, int thread, std::int64_t begin, std::int64_t end) {
    auto& at = *static_cast<LinearLaunch*>(self);
    for (; begin < end; ++begin) at.kernels().logits(at.linear_, begin, at.own_[thread].scratch);
  });
  if (const int code = RunLoss(chunk, linear_.rows); code != LG_OK) return code;
  for (std::int64_t i = 0; i < linear_.rows; ++i) {
    if (args_.loss.losses != nullptr) args_.loss.losses[places_[i]] = losses_[i];
    if (args_.loss.log_z != nullptr) args_.loss.log_z[places_[i]] = log_z_[i];
  }
  if (job_.grad == nullptr) return LG_OK;
  cpu::ForRows(threads_, cpu::HiddenTiles(linear_) + cpu::HeadTiles(linear_), kOneTile, this, [](void* self, int thread, std::int64_t begin, std::int64_t end) {
    auto& at = *static_cast<LinearLaunch*>(self);
    Own& own = at.own_[thread];
    for (; begin < end; ++begin) at.kernels().gradient(at.linear_, begin, own.scratch, &own.sums);
  });
  if (args_.grad_hidden == nullptr) return LG_OK;
  cpu::ForRows(threads_, linear_.rows, args_.width, this, [](void* self, int thread, std::int64_t begin, std::int64_t end) {
    auto& at = *static_cast<LinearLaunch*>(self);
    at.kernels().emit(at.linear_, begin, end, &at.own_[thread].sums);
  });
  return LG_OK;
}

void LinearLaunch::ClearHead(std::int64_t first) const {
  if (args_.accumulate != 0) return;
  const std::int64_t bytes = BytesOfType(args_.head_grad_dtype);
  if (args_.grad_weight != nullptr) {
    for (std::int64_t row = first; row < args_.columns; ++row) {
      std::memset(linear_.grad_weight + row * args_.grad_weight_stride * bytes, 0, static_cast<std::size_t>(args_.width * bytes));
    }
  }
  if (args_.grad_bias != nullptr) std::memset(linear_.grad_bias + first * bytes, 0, static_cast<std::size_t>((args_.columns - first) * bytes));
}

}  // namespace lossgauge
