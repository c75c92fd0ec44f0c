// Any training log that is known here, by its content and not by its name.
#ifndef LOSSGAUGE_SERVER_REPLAY_READ_LOG_H_
#define LOSSGAUGE_SERVER_REPLAY_READ_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/replay/byte_source.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

// Reads to the end in bounded memory, or until `sink` wants no more. Whatever is readable goes to `sink`; what is not is counted in the report with
// its lines, and where reading fails the report says so and is of what came before. INVALID_ARGUMENT: the bytes are of a kind that holds no log as it
// is (compressed, an archive of another program). A file in which nothing was understood is no error: its report has no points.
absl::StatusOr<LogReport> ReadLog(ByteSource* source, LogSink* sink);

// Likewise; errors name the path. Of a bundle DATA_LOSS: reading failed, after points may have gone to `sink`.
absl::StatusOr<LogReport> ReadLogFile(const std::string& path, LogSink* sink);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_READ_LOG_H_
