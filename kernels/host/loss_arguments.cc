#include "kernels/host/loss_arguments.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/host/apart.h"
#include "kernels/host/error.h"
#include "kernels/host/read_structure.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge {
namespace {

// The gradient may lie over the logits exactly, beside them, or between their rows; anything else would overwrite logits not
// yet read.
bool OverlapsBadly(const lg_cross_entropy_args& args) {
  if (args.grad_logits == args.logits && args.rows != 0) return args.grad_row_stride != args.row_stride;
  const std::int64_t bytes = BytesOfType(args.logits_dtype);
  return Overlap({args.logits, args.rows, args.vocab_size, args.row_stride, bytes}, {args.grad_logits, args.rows, args.columns, args.grad_row_stride, bytes});
}

// What fp32 holds with room to spare.
constexpr double kLeastOfOption = 1e-30, kMostOfOption = 1e30;

long long Number(std::int64_t value) { return static_cast<long long>(value); }

}  // namespace

lg_cross_entropy_args DefaultArguments() noexcept {
  lg_cross_entropy_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.logits_dtype = LG_FP32;
  args.target_dtype = LG_INT64;
  args.target_stride = 1;
  args.ignore_index = -100;
  args.logit_scale = 1;
  args.reduction = LG_MEAN;
  args.block = -1;
  return args;
}

lg_scale_gradient_args DefaultScaleArguments() noexcept {
  lg_scale_gradient_args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  return args;
}

int ReadArguments(const lg_cross_entropy_args* given, const char* function, lg_cross_entropy_args* args) noexcept {
  *args = DefaultArguments();
  const int code = ReadStructure(given, function, "lg_cross_entropy_args", offsetof(lg_cross_entropy_args, label_smoothing), args);
  if (code != LG_OK) return code;
  if (args->row_stride == 0) args->row_stride = args->columns;
  if (args->grad_row_stride == 0) args->grad_row_stride = args->columns;
  if (args->vocab_size == 0) args->vocab_size = args->columns;
  return LG_OK;
}

int CheckArguments(const lg_cross_entropy_args& args, const char* function) noexcept {
  if (!IsFloatType(args.logits_dtype)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: logits_dtype: expected LG_FP32 (0), LG_BF16 (1) or LG_FP16 (2), got %d", function,
                    args.logits_dtype);
  }
  if (args.target_dtype != LG_INT32 && args.target_dtype != LG_INT64) {
    return SetError(LG_INVALID_ARGUMENT, "%s: target_dtype: expected LG_INT32 (16) or LG_INT64 (17), got %d", function,
                    args.target_dtype);
  }
  if (args.rows < 0) return SetError(LG_INVALID_ARGUMENT, "%s: rows: expected >= 0, got %lld", function, Number(args.rows));
  if (args.columns < 1)
    return SetError(LG_INVALID_ARGUMENT, "%s: columns: expected >= 1, got %lld", function, Number(args.columns));
  if (args.vocab_size < 1 || args.vocab_size > args.columns) {
    return SetError(LG_INVALID_ARGUMENT, "%s: vocab_size: expected 1 to columns (%lld), or 0 for all of them, got %lld",
                    function, Number(args.columns), Number(args.vocab_size));
  }
  const std::int64_t bytes = BytesOfType(args.logits_dtype);
  if (!SpanFits(args.rows, args.columns, args.row_stride, bytes)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: row_stride: expected rows * row_stride within 63 bits of bytes, got %lld rows of %lld", function,
                    Number(args.rows), Number(args.row_stride));
  }
  if (!SpanFits(args.rows, 1, args.target_stride, 8)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: target_stride: expected rows * target_stride within 63 bits of bytes, got %lld rows of %lld", function,
                    Number(args.rows), Number(args.target_stride));
  }
  if (args.rows > 0 && args.logits == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: logits: expected %lld rows, got NULL", function, Number(args.rows));
  }
  if (args.rows > 0 && args.targets == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: targets: expected %lld values, got NULL", function, Number(args.rows));
  }
  if (!(args.label_smoothing >= 0 && args.label_smoothing < 1)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: label_smoothing: expected 0 <= e < 1, got %g", function, args.label_smoothing);
  }
  if (!(args.z_loss_weight >= 0 && args.z_loss_weight <= kMostOfOption)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: z_loss_weight: expected 0 to 1e30, got %g", function, args.z_loss_weight);
  }
  if (const double scale = std::fabs(args.logit_scale); !(scale >= kLeastOfOption && scale <= kMostOfOption)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: logit_scale: expected a magnitude from 1e-30 to 1e30, got %g", function, args.logit_scale);
  }
  if (const double cap = args.logit_softcap; cap != 0 && !(cap >= kLeastOfOption && cap <= kMostOfOption)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: logit_softcap: expected 1e-30 to 1e30, or 0 for none, got %g", function, cap);
  }
  if (args.reduction != LG_MEAN && args.reduction != LG_SUM && args.reduction != LG_NONE) {
    return SetError(LG_INVALID_ARGUMENT, "%s: reduction: expected LG_MEAN (0), LG_SUM (1) or LG_NONE (2), got %d", function,
                    args.reduction);
  }
  if (!(args.denominator >= 0 && std::isfinite(args.denominator))) {
    return SetError(LG_INVALID_ARGUMENT, "%s: denominator: expected finite and > 0, or 0 to count the unmasked rows, got %g",
                    function, args.denominator);
  }
  if (args.reduction != LG_MEAN && (args.denominator != 0 || args.denominator_pointer != nullptr)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: denominator: expected none with reduction LG_SUM or LG_NONE (only LG_MEAN divides), got one",
                    function);
  }
  if (args.reduction == LG_NONE && args.loss != nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: loss: expected NULL with reduction LG_NONE (use losses), got a pointer",
                    function);
  }
  if (args.grad_logits != nullptr) {
    if (!SpanFits(args.rows, args.columns, args.grad_row_stride, bytes) ||
        (args.rows > 1 && (args.grad_row_stride < 0 ? -args.grad_row_stride : args.grad_row_stride) < args.columns)) {
      return SetError(LG_INVALID_ARGUMENT,
                      "%s: grad_row_stride: expected at least columns (%lld), so that rows do not overlap, got %lld", function,
                      Number(args.columns), Number(args.grad_row_stride));
    }
    if (OverlapsBadly(args)) {
      return SetError(LG_INVALID_ARGUMENT,
                      "%s: grad_logits: expected a buffer apart from logits, or the same pointer and row stride (in place); "
                      "got logits at %p stride %lld, grad_logits at %p stride %lld",
                      function, args.logits, Number(args.row_stride), args.grad_logits, Number(args.grad_row_stride));
    }
  }
  if (args.upstream == nullptr && args.upstream_stride != 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: upstream_stride: expected 0 where upstream is NULL, got %lld", function,
                    Number(args.upstream_stride));
  }
  if (!SpanFits(args.rows, 1, args.upstream_stride, 4)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: upstream_stride: expected rows * upstream_stride within 63 bits of bytes, got %lld", function,
                    Number(args.upstream_stride));
  }
  constexpr std::int64_t kPositions = std::int64_t{1} << 48;
  if (args.position_base < 0 || args.position_base > kPositions - args.rows) {
    return SetError(LG_INVALID_ARGUMENT, "%s: position_base: expected 0 to 2^48 - rows, got %lld", function,
                    Number(args.position_base));
  }
  if (args.gauge != nullptr && (args.block < -1 || args.block >= static_cast<std::int32_t>(LG_BLOCK_COUNT))) {
    return SetError(LG_INVALID_ARGUMENT, "%s: block: expected -1 (by phase) or 0 to %u, got %d", function, LG_BLOCK_COUNT - 1,
                    args.block);
  }
  if (args.threads < 0) return SetError(LG_INVALID_ARGUMENT, "%s: threads: expected >= 0, got %d", function, args.threads);
  return LG_OK;
}

int CheckOverlaps(const lg_cross_entropy_args& args, const char* function) noexcept {
  const std::int64_t rows = args.rows, bytes = BytesOfType(args.logits_dtype);
  const bool in_place = args.grad_logits == args.logits;
  const NamedSpan written[] = {
      {"grad_logits", {args.grad_logits, rows, args.columns, args.grad_row_stride, bytes}},
      {"losses", {args.losses, rows, 1, 1, 4}},
      {"log_z", {args.log_z, rows, 1, 1, 4}},
      {"loss", {args.loss, 1, 1, 1, 4}},
  };
  const NamedSpan read[] = {
      {"logits", {in_place ? nullptr : args.logits, rows, args.vocab_size, args.row_stride, bytes}},
      {"targets", {args.targets, rows, 1, args.target_stride, BytesOfType(args.target_dtype)}},
      {"upstream", {args.upstream, args.upstream_stride == 0 ? 1 : rows, 1, args.upstream_stride, 4}},
      {"grad_scale", {args.grad_scale, 1, 1, 1, 4}},
      {"denominator_pointer", {args.denominator_pointer, 1, 1, 1, 8}},
      {"positions", {args.positions, rows, 1, 1, 8}},
  };
  return CheckApart(function, written, read);
}

int ReadScaleArguments(const lg_scale_gradient_args* given, lg_scale_gradient_args* args) noexcept {
  const char* function = "lg_scale_gradient";
  *args = DefaultScaleArguments();
  const int code = ReadStructure(given, function, "lg_scale_gradient_args", offsetof(lg_scale_gradient_args, upstream_stride), args);
  if (code != LG_OK) return code;
  if (args->row_stride == 0) args->row_stride = args->columns;
  if (!IsFloatType(args->dtype)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: dtype: expected LG_FP32 (0), LG_BF16 (1) or LG_FP16 (2), got %d", function,
                    args->dtype);
  }
  if (args->rows < 0) return SetError(LG_INVALID_ARGUMENT, "%s: rows: expected >= 0, got %lld", function, Number(args->rows));
  if (args->columns < 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: columns: expected >= 1, got %lld", function, Number(args->columns));
  }
  if (!SpanFits(args->rows, args->columns, args->row_stride, BytesOfType(args->dtype)) ||
      (args->rows > 1 && (args->row_stride < 0 ? -args->row_stride : args->row_stride) < args->columns)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: row_stride: expected at least columns (%lld), so that rows do not overlap, got %lld", function,
                    Number(args->columns), Number(args->row_stride));
  }
  if (args->rows > 0 && args->grad == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: grad: expected %lld rows, got NULL", function, Number(args->rows));
  }
  if (args->rows > 0 && args->upstream == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: upstream: expected a scalar or one value a row, got NULL", function);
  }
  if (!SpanFits(args->rows, 1, args->upstream_stride, 4)) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s: upstream_stride: expected rows * upstream_stride within 63 bits of bytes, got %lld", function,
                    Number(args->upstream_stride));
  }
  if (args->threads < 0) return SetError(LG_INVALID_ARGUMENT, "%s: threads: expected >= 0, got %d", function, args->threads);
  const NamedSpan grad[] = {{"grad", {args->grad, args->rows, args->columns, args->row_stride, BytesOfType(args->dtype)}}};
  const NamedSpan upstream[] = {{"upstream", {args->upstream, args->upstream_stride == 0 ? 1 : args->rows, 1, args->upstream_stride, 4}}};
  return CheckApart(function, grad, upstream);
}

cpu::CrossEntropyJob MakeCpuJob(const lg_cross_entropy_args& args) noexcept {
  const std::int64_t bytes = BytesOfType(args.logits_dtype);
  cpu::CrossEntropyJob job;
  job.logits = static_cast<const unsigned char*>(args.logits);
  job.logits_dtype = args.logits_dtype;
  job.columns = args.columns;
  job.vocab_size = job.classes = args.vocab_size;
  job.row_stride_bytes = args.row_stride * bytes;
  job.targets = static_cast<const unsigned char*>(args.targets);
  job.targets_are_int64 = args.target_dtype == LG_INT64;
  job.target_stride_bytes = args.target_stride * BytesOfType(args.target_dtype);
  job.ignore_index = args.ignore_index;
  job.label_smoothing = args.label_smoothing;
  job.z_loss_weight = args.z_loss_weight;
  job.logit_scale = args.logit_scale;
  job.logit_softcap = args.logit_softcap;
  job.losses = args.losses;
  job.log_z = args.log_z;
  job.grad = static_cast<unsigned char*>(args.grad_logits);
  job.grad_row_stride_bytes = args.grad_row_stride * bytes;
  job.upstream = args.upstream;
  job.upstream_stride = args.upstream_stride;
  job.grad_scale = args.grad_scale != nullptr ? static_cast<double>(*args.grad_scale) : 1.0;
  job.denominator = 1;
  job.stream_grad = false;
  job.signals = false;
  job.token_bytes = nullptr;
  job.token_bytes_size = 0;
  job.position_base = args.position_base;
  job.positions = args.positions;
  return job;
}

cpu::ScaleJob MakeScaleJob(const lg_scale_gradient_args& args) noexcept {
  return {static_cast<unsigned char*>(args.grad), args.dtype,    args.columns,
          args.row_stride * BytesOfType(args.dtype),  args.upstream, args.upstream_stride};
}

}  // namespace lossgauge
