#include "server/main/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lossgauge::main {

absl::Status LockStateDirectory(const std::string& directory) {
  const std::string path = directory + "/lossgauged.lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();  // the descriptor stays open
  const int error = errno;
  close(fd);
  if (error == EWOULDBLOCK) {
    return absl::UnavailableError(absl::StrCat("another lossgauged uses --state_dir ", directory, "; give this one a directory of its own"));
  }
  return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", std::strerror(error)));
}

}  // namespace lossgauge::main
