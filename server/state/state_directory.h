// Where lossgauged keeps what shall survive it.
#ifndef LOSSGAUGE_SERVER_STATE_STATE_DIRECTORY_H_
#define LOSSGAUGE_SERVER_STATE_STATE_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace lossgauge::state {

// Makes it 0750 if absent. Its path without symbolic links: homes and /var are often behind one, and SQLite, which is told to
// follow none so that nobody turns its files elsewhere, looks at every part of a path. An error names the directory.
absl::StatusOr<std::string> MakeStateDirectory(const std::string& directory);

// A new one below TMPDIR, or below /tmp where TMPDIR is no directory.
absl::StatusOr<std::string> MakeTemporaryStateDirectory();

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_STATE_DIRECTORY_H_
