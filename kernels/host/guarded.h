// The edge of the C ABI: what a backend or the standard library throws becomes a code (conventions 1 and 2).
#ifndef LOSSGAUGE_KERNELS_HOST_GUARDED_H_
#define LOSSGAUGE_KERNELS_HOST_GUARDED_H_

#include <exception>
#include <new>

#include "kernels/host/error.h"

namespace lossgauge {

// Runs `call`, which returns an lg_code. `memory`: what there may be no memory for, as the message ends with it.
template <class Call>
int Guarded(const char* function, const char* memory, const Call& call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return SetError(LG_RESOURCE_EXHAUSTED, "%s: no memory for %s", function, memory);
  } catch (const std::exception& error) {
    return SetError(LG_INTERNAL, "%s: %s", function, error.what());
  } catch (...) {
    return SetError(LG_INTERNAL, "%s: an exception of an unknown kind", function);
  }
}

// What a device's backend keeps on the host: sizes of streams' workspaces, choices of algorithms.
inline constexpr char kDeviceBookkeeping[] = "what is kept on the host about a device";

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_GUARDED_H_
