#include "kernels/cuda/device_arguments.h"

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/host/error.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge::cuda {
namespace {

// What both kinds of loss call are given beside their logits.
int CheckLossTensors(const lg_cross_entropy_args& args, std::int64_t rows, int ordinal, const char* where, const char* function) {
  const DeviceTensor tensors[] = {{"targets", args.targets, 4},       {"losses", args.losses, 4},         {"log_z", args.log_z, 4},
                                  {"loss", args.loss, 4},             {"upstream", args.upstream, 4},     {"grad_scale", args.grad_scale, 4},
                                  {"positions", args.positions, 8},   {"denominator_pointer", args.denominator_pointer, 8}};
  for (const DeviceTensor& tensor : tensors) {
    const bool is_scalar = tensor.pointer == args.loss || tensor.pointer == args.denominator_pointer;
    if (rows == 0 && !is_scalar) continue;  // the launch that writes a loss of 0 also reads what the call says that it divides by
    if (const int code = CheckTensor(tensor, ordinal, where, function); code != LG_OK) return code;
  }
  return LG_OK;
}

}  // namespace

int DeviceOf(const void* pointer) noexcept {
  cudaPointerAttributes attributes{};
  if (pointer == nullptr || cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

int CheckTensor(const DeviceTensor& tensor, int ordinal, const char* where, const char* function) {
  if (tensor.pointer == nullptr) return LG_OK;
  if (reinterpret_cast<std::uintptr_t>(tensor.pointer) % tensor.alignment != 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected a pointer aligned to its %u-byte elements, got %p", function, tensor.name, tensor.alignment, tensor.pointer);
  }
  const int device = DeviceOf(tensor.pointer);
  if (device == ordinal) return LG_OK;
  if (device < 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected memory of device %d, where %s is, got host memory", function, tensor.name, ordinal, where);
  }
  return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected memory of device %d, where %s is, got device %d", function, tensor.name, ordinal, where, device);
}

int CheckDevices(const lg_cross_entropy_args& args, int ordinal, const char* function) {
  const auto bytes = static_cast<unsigned>(BytesOfType(args.logits_dtype));
  if (args.rows > 0) {
    for (const DeviceTensor& tensor : {DeviceTensor{"logits", args.logits, bytes}, DeviceTensor{"grad_logits", args.grad_logits, bytes}}) {
      if (const int code = CheckTensor(tensor, ordinal, "logits", function); code != LG_OK) return code;
    }
  }
  if (const int code = CheckLossTensors(args, args.rows, ordinal, "logits", function); code != LG_OK) return code;
  if (args.columns > (1ll << 30)) {
    return SetError(LG_INVALID_ARGUMENT, "%s: columns: expected at most 2^30 on a device, got %lld", function, static_cast<long long>(args.columns));
  }
  return LG_OK;
}

int CheckLinearDevices(const lg_linear_cross_entropy_args& args, int ordinal, const char* function) {
  if (ordinal < 0) return SetError(LG_INVALID_ARGUMENT, "%s: weight: expected memory of a device, where hidden is, got host memory", function);
  const auto bytes = static_cast<unsigned>(BytesOfType(args.dtype)), head_bytes = static_cast<unsigned>(BytesOfType(args.head_grad_dtype));
  const DeviceTensor of_rows[] = {{"hidden", args.hidden, bytes}, {"grad_hidden", args.grad_hidden, bytes}};
  const DeviceTensor of_head[] = {{"weight", args.weight, bytes},
                                  {"bias", args.bias, bytes},
                                  {"grad_weight", args.grad_weight, head_bytes},
                                  {"grad_bias", args.grad_bias, head_bytes},
                                  {"workspace", args.workspace, 256}};
  for (const DeviceTensor& tensor : of_rows) {
    if (args.rows == 0) break;
    if (const int code = CheckTensor(tensor, ordinal, "hidden", function); code != LG_OK) return code;
  }
  for (const DeviceTensor& tensor : of_head) {
    if (const int code = CheckTensor(tensor, ordinal, "hidden", function); code != LG_OK) return code;
  }
  return CheckLossTensors(args.loss, args.rows, ordinal, "hidden", function);
}

CrossEntropyLaunch MakeLaunch(const lg_cross_entropy_args& args, LossPurpose purpose) {
  const long long bytes = BytesOfType(args.logits_dtype);
  CrossEntropyLaunch a{};
  a.logits = static_cast<const unsigned char*>(args.logits);
  a.grad = static_cast<unsigned char*>(args.grad_logits);
  a.row_stride_bytes = args.row_stride * bytes;
  a.grad_stride_bytes = args.grad_row_stride * bytes;
  a.rows = args.rows;
  a.columns = static_cast<int>(args.columns);
  a.vocab_size = static_cast<int>(args.vocab_size);
  a.targets = args.targets;
  a.targets_are_int64 = args.target_dtype == LG_INT64;
  a.target_stride = args.target_stride;
  a.ignore_index = args.ignore_index;
  a.label_smoothing = static_cast<float>(args.label_smoothing);
  a.z_loss_weight = static_cast<float>(args.z_loss_weight);
  a.logit_scale = args.logit_scale;
  a.logit_softcap = args.logit_softcap;
  a.losses = args.losses;
  a.log_z = args.log_z;
  a.loss = args.loss;
  a.denominator = 1.;
  if (args.reduction == LG_MEAN) {
    const bool given = args.denominator_pointer != nullptr || args.denominator != 0;
    a.denominator_pointer = args.denominator_pointer;
    a.denominator = args.denominator;
    a.count_denominator = !given && (args.grad_logits != nullptr || args.loss != nullptr);
    a.announce_denominator = given || purpose != LossPurpose::kObserve;
  }
  a.upstream = args.upstream;
  a.upstream_stride = args.upstream_stride;
  a.grad_scale = args.grad_scale;
  a.position_base = args.position_base;
  a.positions = reinterpret_cast<const long long*>(args.positions);
  a.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE;
  if (a.grad != nullptr) a.present |= LG_HAS_LOGIT_GRAD | LG_HAS_MASS;
  return a;
}

}  // namespace lossgauge::cuda
