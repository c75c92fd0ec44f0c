// Reading a caller's structure of arguments that may be older or newer than this library (convention 3 of lossgauge.h).
#ifndef LOSSGAUGE_KERNELS_HOST_READ_STRUCTURE_H_
#define LOSSGAUGE_KERNELS_HOST_READ_STRUCTURE_H_

#include <cstddef>
#include <cstring>

#include "kernels/host/error.h"

namespace lossgauge {

// Copies as much of `given` as both sides know over the defaults in `full`. `least`: bytes without which no structure makes sense. `function` and
// `type` ("lg_cross_entropy_args") are for the message. Returns an lg_code.
template <class T>
int ReadStructure(const T* given, const char* function, const char* type, std::size_t least, T* full) noexcept {
  if (given == nullptr) return SetError(LG_INVALID_ARGUMENT, "%s: args: expected a structure, got NULL", function);
  std::size_t size;
  std::memcpy(&size, given, sizeof size);
  // No structure of any age ends within a member.
  if (size < least || size > 64 * 1024 || size % alignof(T) != 0) {
    return SetError(LG_INVALID_ARGUMENT, "%s: args.struct_size: expected %zu to 65536, a multiple of %zu, got %zu; fill args with %s_init first", function, least,
                    alignof(T), size, type);
  }
  std::memcpy(full, given, size < sizeof *full ? size : sizeof *full);
  full->struct_size = sizeof *full;
  return LG_OK;
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_READ_STRUCTURE_H_
