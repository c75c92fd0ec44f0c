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
  const int code = CheckHost(pointers, function);
  return code == LG_OK ? CheckLossTensors(args, function) : code;
}

int CheckHostTensors(const lg_linear_cross_entropy_args& args, const char* function) noexcept {
  const bool rows = args.rows > 0;
  const NamedPointer pointers[] = {{"hidden", args.hidden, rows},           {"weight", args.weight, rows},
                                   {"bias", args.bias, rows},               {"grad_hidden", args.grad_hidden, rows},
                                   {"grad_weight", args.grad_weight, true}, {"grad_bias", args.grad_bias, true},
                                   {"workspace", args.workspace, true}};
  const int code = CheckHost(pointers, function);
  return code == LG_OK ? CheckLossTensors(args.loss, function) : code;
}

int CheckHostTensors(const lg_scale_gradient_args& args, const char* function) noexcept {
  const NamedPointer pointers[] = {{"grad", args.grad, true}, {"upstream", args.upstream, true}};
  return CheckHost(pointers, function);
}

}  // namespace lossgauge
