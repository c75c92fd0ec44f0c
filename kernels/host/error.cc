#include "kernels/host/error.h"

#include <cstdarg>
#include <cstdio>

namespace lossgauge {
namespace {

thread_local char message[512];

}  // namespace

int SetError(lg_code code, const char* format, ...) noexcept {
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

const char* LastError() noexcept { return message; }

}  // namespace lossgauge
