#include "server/ctl/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {
namespace {

absl::Status Failed(const std::string& path) { return absl::ErrnoToStatus(errno, Printable(path)); }

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  std::string partial = path + ".part-XXXXXX";
  const int descriptor = mkostemp(partial.data(), O_CLOEXEC);
  if (descriptor < 0) return Failed(path);
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(descriptor, 0666 & ~mask);  // mkostemp gives 0600
  return OutputFile(path, std::move(partial), descriptor);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), partial_path_(std::exchange(other.partial_path_, "")), descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!partial_path_.empty()) unlink(partial_path_.c_str());
}

absl::Status OutputFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed(path_);
    bytes_ += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Keep() {
  if (fsync(descriptor_) != 0 && errno != EINVAL) return Failed(path_);
  if (close(std::exchange(descriptor_, -1)) != 0) return Failed(path_);
  if (rename(partial_path_.c_str(), path_.c_str()) != 0) return Failed(path_);
  partial_path_.clear();
  return absl::OkStatus();
}

}  // namespace lossgauge::ctl
