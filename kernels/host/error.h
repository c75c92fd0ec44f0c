// The error text of the C ABI: one buffer for each thread, written by SetError and read by lg_last_error().
#ifndef LOSSGAUGE_KERNELS_HOST_ERROR_H_
#define LOSSGAUGE_KERNELS_HOST_ERROR_H_

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

// Formats the message of a failure into this thread's buffer (cut at 511 bytes) and returns `code`, so that a check reads
// `if (rows < 0) return SetError(LG_INVALID_ARGUMENT, "rows: must be >= 0, got %lld", ...)`. Never allocates.
int SetError(lg_code code, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

// The message of the last failure on this thread; "" if there was none.
const char* LastError() noexcept;

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_ERROR_H_
