#include "kernels/host/host_tensors.h"

#include <cstddef>
#include <cstdint>

#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"

namespace lossgauge {
namespace {

struct NamedPointer {
  const char* name;
  const void* pointer;  // null = not given
  bool is_used;
};

template <std::size_t kCount>
int CheckHost(const NamedPointer (&pointers)[kCount], const char* function) {
  DeviceBackend* const backend = FindDeviceBackend();
  if (backend == nullptr) return LG_OK;
  for (const NamedPointer& each : pointers) {
    const int device = each.is_used && each.pointer != nullptr ? backend->DeviceOf(each.pointer) : -1;
    if (device < 0) continue;
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected host memory, where the other tensors are, got memory of device %d", function, each.name, device);
  }
  return LG_OK;
}

// Last: of tensors that are partly a device's, the stream is not what is wrong.
int CheckNoStream(const void* stream, const char* function) {
  if (stream == nullptr) return LG_OK;
  return SetError(LG_UNIMPLEMENTED, "%s: stream: expected NULL for tensors in host memory, got a stream", function);
}

int CheckLossTensors(const lg_cross_entropy_args& args, const char* function) {
  const bool rows = args.rows > 0;
  const NamedPointer pointers[] = {{"targets", args.targets, rows},       {"losses", args.losses, rows},
                                   {"log_z", args.log_z, rows},           {"loss", args.loss, true},
                                   {"upstream", args.upstream, rows},     {"grad_scale", args.grad_scale, true},
                                   {"positions", args.positions, rows},   {"denominator_pointer", args.denominator_pointer, true}};
  return CheckHost(pointers, function);
}

}  // namespace

int CheckHostTensors(const lg_cross_entropy_args& args, const char* function) noexcept {
  const NamedPointer pointers[] = {{"logits", args.logits, args.rows > 0}, {"grad_logits", args.grad_logits, args.rows > 0}};
  if (const int code = CheckHost(pointers, function); code != LG_OK) return code;
  if (const int code = CheckLossTensors(args, function); code != LG_OK) return code;
  const bool has_tensors = args.rows > 0 || args.loss != nullptr;  // without any, the stream may be a device's
  return has_tensors ? CheckNoStream(args.stream, function) : static_cast<int>(LG_OK);
}

int CheckHostTensors(const lg_linear_cross_entropy_args& args, const char* function) noexcept {
  const bool rows = args.rows > 0;
  const NamedPointer pointers[] = {{"hidden", args.hidden, rows},           {"weight", args.weight, rows},
                                   {"bias", args.bias, rows},               {"grad_hidden", args.grad_hidden, rows},
                                   {"grad_weight", args.grad_weight, true}, {"grad_bias", args.grad_bias, true},
                                   {"workspace", args.workspace, true}};
  if (const int code = CheckHost(pointers, function); code != LG_OK) return code;
  const int code = CheckLossTensors(args.loss, function);
  return code == LG_OK ? CheckNoStream(args.loss.stream, function) : code;
}

int CheckHostTensors(const lg_scale_gradient_args& args, const char* function) noexcept {
  const NamedPointer pointers[] = {{"grad", args.grad, true}, {"upstream", args.upstream, true}};
  const int code = CheckHost(pointers, function);
  return code == LG_OK ? CheckNoStream(args.stream, function) : code;
}

}  // namespace lossgauge
