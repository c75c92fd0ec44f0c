#include "server/state/state_directory.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lossgauge::state {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> RealPath(const std::string& directory) {
  std::error_code error;
  const fs::path real = fs::canonical(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot resolve --state_dir ", directory, ": ", error.message()));
  return real.string();
}

}  // namespace

absl::StatusOr<std::string> MakeStateDirectory(const std::string& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create --state_dir ", directory, ": ", error.message()));
  if (made) (void)chmod(directory.c_str(), 0750);
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--state_dir ", directory, " cannot be written by uid ", geteuid(), ": ", std::strerror(errno)));
  }
  return RealPath(directory);
}

absl::StatusOr<std::string> MakeTemporaryStateDirectory() {
  std::error_code error;
  fs::path parent = fs::temp_directory_path(error);
  if (error) parent = "/tmp";
  std::string pattern = (parent / "lossgauge-state-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a temporary state directory ", pattern, ": ", std::strerror(errno),
                                               "; TMPDIR names another place for it"));
  }
  return RealPath(pattern);
}

}  // namespace lossgauge::state
