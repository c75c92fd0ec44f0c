// The part of the command line that says where steps are sent to: the same for every role.
#ifndef LOSSGAUGE_SERVER_MAIN_SINK_FLAGS_H_
#define LOSSGAUGE_SERVER_MAIN_SINK_FLAGS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "server/export/otlp_sink.h"
#include "server/export/remote_write_sink.h"

namespace lossgauge::main {

struct SinkFlags {
  std::optional<export_::RemoteWriteOptions> remote_write;
  std::optional<export_::OtlpOptions> otlp;
  std::int64_t max_age_ns = 0;
  std::uint64_t max_pending_steps = 0;
};

// After the command line was parsed. INVALID_ARGUMENT names the flag.
absl::StatusOr<SinkFlags> GetSinkFlags();

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_SINK_FLAGS_H_
