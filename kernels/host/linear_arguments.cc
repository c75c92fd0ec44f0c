#include "kernels/host/linear_arguments.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/host/apart.h"
#include "kernels/host/error.h"
#include "kernels/host/loss_arguments.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge {
namespace {

using Args = lg_linear_cross_entropy_args;

constexpr std::uintptr_t kWorkspaceAlignment = 256;
constexpr std::int64_t kMostOfSize = std::int64_t{1} << 40;  // so that bytes of a row, however many a row's parts take, are far within 63 bits

long long Number(std::int64_t value) { return static_cast<long long>(value); }

int CheckTypes(const Args& args, const char* function) {
  if (!IsFloatType(args.dtype)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: dtype: expected LG_FP32 (0), LG_BF16 (1) or LG_FP16 (2), got %d", function, args.dtype);
  }
  if (args.logits_dtype != -1 && args.logits_dtype != LG_FP32 && args.logits_dtype != args.dtype) {
    return SetError(LG_INVALID_ARGUMENT, "%s: logits_dtype: expected -1, LG_FP32 (0) or dtype (%d), got %d", function, args.dtype, args.logits_dtype);
  }
  if (args.head_grad_dtype != LG_FP32 && args.head_grad_dtype != args.dtype) {
    return SetError(LG_INVALID_ARGUMENT, "%s: head_grad_dtype: expected LG_FP32 (0) or dtype (%d), got %d", function, args.dtype, args.head_grad_dtype);
  }
  if (args.accumulate != 0 && args.accumulate != 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: accumulate: expected 0 or 1, got %d", function, args.accumulate);
  }
  if (args.head_grad_signal != 0 && args.head_grad_signal != 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: head_grad_signal: expected 0 or 1, got %d", function, args.head_grad_signal);
  }
  for (const std::int64_t word : args.reserved) {
    if (word != 0) return SetError(LG_INVALID_ARGUMENT, "%s: reserved: expected 0, got %lld; this library knows no such member", function, Number(word));
  }
  return LG_OK;
}

// Rows of `width` that lie apart, and their stride.
int CheckMatrix(const char* function, const char* stride_name, std::int64_t rows, std::int64_t width, std::int64_t stride) {
  if (stride >= width && SpanFits(rows, width, stride, 8)) return LG_OK;
  return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected at least width (%lld), or 0 for it, and rows * stride within 63 bits of bytes; got %lld", function,
                  stride_name, Number(width), Number(stride));
}

int CheckShapes(const Args& args, const char* function) {
  const struct {
    const char* name;
    std::int64_t least, size;
  } sizes[] = {{"rows", 0, args.rows}, {"width", 1, args.width}, {"columns", 1, args.columns}};
  for (const auto& each : sizes) {
    if (each.size >= each.least && each.size <= kMostOfSize) continue;
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected %lld to 2^40, got %lld", function, each.name, Number(each.least), Number(each.size));
  }
  int code = CheckMatrix(function, "hidden_stride", args.rows, args.width, args.hidden_stride);
  if (code == LG_OK) code = CheckMatrix(function, "weight_stride", args.columns, args.width, args.weight_stride);
  if (code == LG_OK) code = CheckMatrix(function, "grad_hidden_stride", args.rows, args.width, args.grad_hidden_stride);
  if (code == LG_OK) code = CheckMatrix(function, "grad_weight_stride", args.columns, args.width, args.grad_weight_stride);
  return code;
}

int CheckMemory(const Args& args, const char* function) {
  if (args.chunk_rows < 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: chunk_rows: expected >= 1, or 0 for as many as memory_budget allows, got %lld", function, Number(args.chunk_rows));
  }
  if (args.memory_budget < 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: memory_budget: expected bytes, or 0 for the default, got %lld", function, Number(args.memory_budget));
  }
  if (args.workspace_bytes < 0 || (args.workspace == nullptr && args.workspace_bytes != 0)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: workspace_bytes: expected the size of workspace, 0 where that is NULL, got %lld", function,
                    Number(args.workspace_bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(args.workspace) % kWorkspaceAlignment != 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: workspace: expected a pointer aligned to %d bytes, got %p", function, static_cast<int>(kWorkspaceAlignment),
                    args.workspace);
  }
  if (args.most_unmasked_rows < -1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: most_unmasked_rows: expected >= 0, or -1 for not known, got %lld", function, Number(args.most_unmasked_rows));
  }
  return LG_OK;
}

int CheckPointers(const Args& args, LinearPurpose purpose, const char* function) {
  if (args.rows > 0 && args.hidden == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: hidden: expected %lld rows, got NULL", function, Number(args.rows));
  }
  if (args.rows > 0 && args.weight == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: weight: expected %lld rows, got NULL", function, Number(args.columns));
  }
  if (args.grad_bias != nullptr && args.bias == nullptr) {
    return SetError(LG_INVALID_ARGUMENT, "%s: grad_bias: expected NULL where bias is NULL, got a pointer", function);
  }
  if (purpose == LinearPurpose::kBackward && !WantsGradient(args)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: grad_hidden, grad_weight, grad_bias: expected where to write a gradient, got NULL for all of them", function);
  }
  return LG_OK;
}

// Everything that is written lies apart from everything else: what a chunk writes, a later chunk would read.
int CheckOverlaps(const Args& args, const char* function) {
  const std::int64_t bytes = BytesOfType(args.dtype), head_bytes = BytesOfType(args.head_grad_dtype), rows = args.rows;
  const lg_cross_entropy_args& loss = args.loss;
  const std::int64_t target_bytes = BytesOfType(loss.target_dtype);
  const NamedSpan written[] = {
      {"grad_hidden", {args.grad_hidden, rows, args.width, args.grad_hidden_stride, bytes}},
      {"grad_weight", {args.grad_weight, args.columns, args.width, args.grad_weight_stride, head_bytes}},
      {"grad_bias", {args.grad_bias, 1, args.columns, args.columns, head_bytes}},
      {"losses", {loss.losses, rows, 1, 1, 4}},
      {"log_z", {loss.log_z, rows, 1, 1, 4}},
      {"loss", {loss.loss, 1, 1, 1, 4}},
      {"workspace", {args.workspace, 1, args.workspace_bytes, args.workspace_bytes, 1}},
  };
  const NamedSpan read[] = {
      {"hidden", {args.hidden, rows, args.width, args.hidden_stride, bytes}},
      {"weight", {args.weight, loss.vocab_size, args.width, args.weight_stride, bytes}},
      {"bias", {args.bias, 1, loss.vocab_size, loss.vocab_size, bytes}},
      {"targets", {loss.targets, rows, 1, loss.target_stride, target_bytes}},
      {"upstream", {loss.upstream, loss.upstream_stride == 0 ? 1 : rows, 1, loss.upstream_stride, 4}},
      {"grad_scale", {loss.grad_scale, 1, 1, 1, 4}},
      {"denominator_pointer", {loss.denominator_pointer, 1, 1, 1, 8}},
      {"positions", {loss.positions, rows, 1, 1, 8}},
  };
  return CheckApart(function, written, read);
}

}  // namespace

lg_linear_cross_entropy_args DefaultLinearArguments() noexcept {
  Args args;
  std::memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.dtype = LG_FP32;
  args.logits_dtype = -1;
  args.head_grad_dtype = LG_FP32;
  args.most_unmasked_rows = -1;
  args.loss = DefaultArguments();
  return args;
}

int ReadLinearArguments(const Args* given, const char* function, Args* args) noexcept {
  *args = DefaultLinearArguments();
  const int code = ReadStructureWithLoss(given, function, "lg_linear_cross_entropy_args", args);
  if (code != LG_OK) return code;
  for (std::int64_t* stride : {&args->hidden_stride, &args->weight_stride, &args->grad_hidden_stride, &args->grad_weight_stride}) {
    if (*stride == 0) *stride = args->width;
  }
  lg_cross_entropy_args& loss = args->loss;
  loss.rows = args->rows;
  loss.columns = args->columns;
  if (loss.vocab_size == 0) loss.vocab_size = args->columns;
  loss.logits = nullptr;
  loss.grad_logits = nullptr;
  loss.row_stride = loss.grad_row_stride = 0;
  loss.logits_dtype = LG_FP32;
  return LG_OK;
}

int CheckLinearArguments(const Args& args, LinearPurpose purpose, const char* function) noexcept {
  const bool runs = purpose == LinearPurpose::kForward || purpose == LinearPurpose::kBackward;
  const bool reads = runs || purpose == LinearPurpose::kPrepareOnDevice;
  int code = CheckTypes(args, function);
  if (code == LG_OK) code = CheckShapes(args, function);
  if (code == LG_OK) code = CheckMemory(args, function);
  if (code == LG_OK && reads) code = CheckPointers(args, purpose, function);
  if (code != LG_OK) return code;
  lg_cross_entropy_args loss = args.loss;
  loss.logits = &loss;  // there are none to be missed
  if (!runs && loss.targets == nullptr) loss.targets = &loss;  // not looked at
  code = CheckArguments(loss, function);
  if (code == LG_OK && reads) code = CheckOverlaps(args, function);
  return code;
}

void ResolveLogitsType(Args* args, std::int32_t otherwise) noexcept {
  if (args->logits_dtype == -1) args->logits_dtype = otherwise;
  args->loss.logits_dtype = args->logits_dtype;
}

}  // namespace lossgauge
