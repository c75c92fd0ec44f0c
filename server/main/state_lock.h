// One lossgauged per state directory: two would each take the other's cursors for its own.
#ifndef LOSSGAUGE_SERVER_MAIN_STATE_LOCK_H_
#define LOSSGAUGE_SERVER_MAIN_STATE_LOCK_H_

#include <string>

#include "absl/status/status.h"

namespace lossgauge::main {

// Held until the process ends, however it ends. UNAVAILABLE if another process holds it.
absl::Status LockStateDirectory(const std::string& directory);

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_STATE_LOCK_H_
