// What the linear calls of the C ABI have in common, over a whole head and over a shard of it.
#ifndef LOSSGAUGE_KERNELS_HOST_LINEAR_ENTRY_H_
#define LOSSGAUGE_KERNELS_HOST_LINEAR_ENTRY_H_

#include <cstddef>
#include <cstring>

#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// The device that the tensors are on; nullptr = host memory.
inline DeviceBackend* LinearBackendOf(const lg_linear_cross_entropy_args& args) noexcept {
  DeviceBackend* const backend = FindDeviceBackend();
  if (backend == nullptr) return nullptr;
  const void* const places[] = {args.hidden, args.weight, args.grad_weight, args.loss.loss};
  for (const void* place : places) {
    if (place != nullptr) return backend->DeviceOf(place) >= 0 ? backend : nullptr;
  }
  return nullptr;
}

// Writes what make(&made) plans, as much of it as the caller's structure holds. `plan` is untouched unless LG_OK comes back.
template <class Make>
int WriteLinearPlan(lg_linear_plan* plan, const char* function, const Make& make) noexcept {
  std::size_t size = 0;
  if (plan != nullptr) std::memcpy(&size, plan, sizeof size);
  if (size < sizeof size || size > 64 * 1024) {
    return SetError(LG_INVALID_ARGUMENT, "%s: plan.struct_size: expected sizeof(lg_linear_plan), got %zu%s", function, size, plan == nullptr ? " (NULL)" : "");
  }
  lg_linear_plan made{};
  if (const int code = make(&made); code != LG_OK) return code;
  made.struct_size = size;
  std::memcpy(plan, &made, size < sizeof made ? size : sizeof made);
  return LG_OK;
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LINEAR_ENTRY_H_
