// Whether what a call writes lies apart from all else that it is given. For the checks of arguments: nothing here follows a pointer.
#ifndef LOSSGAUGE_KERNELS_HOST_APART_H_
#define LOSSGAUGE_KERNELS_HOST_APART_H_

#include <cstddef>

#include "kernels/host/error.h"
#include "kernels/host/tensor_span.h"

namespace lossgauge {

struct NamedSpan {
  const char* name;
  TensorSpan span;
};

// LG_INVALID_ARGUMENT names the first two that share a byte, of which one at least is written.
template <std::size_t kWritten, std::size_t kRead>
int CheckApart(const char* function, const NamedSpan (&written)[kWritten], const NamedSpan (&read)[kRead]) noexcept {
  const auto refuse = [function](const NamedSpan& a, const NamedSpan& b) {
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected memory apart from %s, got an overlap (%p and %p)", function, a.name, b.name, a.span.data,
                    b.span.data);
  };
  for (std::size_t i = 0; i < kWritten; ++i) {
    for (const NamedSpan& other : read) {
      if (Overlap(written[i].span, other.span)) return refuse(written[i], other);
    }
    for (std::size_t j = i + 1; j < kWritten; ++j) {
      if (Overlap(written[i].span, written[j].span)) return refuse(written[i], written[j]);
    }
  }
  return LG_OK;
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_APART_H_
