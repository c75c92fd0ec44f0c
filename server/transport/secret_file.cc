#include "server/transport/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lossgauge::transport {
namespace {

constexpr std::int64_t kMaxBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path, bool secret) {
  const auto refuse = [&](const std::string& why) { return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " ", why)); };
  // Not blocking: a FIFO in the file's place must not hold us.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return refuse(absl::StrCat("cannot be opened: ", std::strerror(errno)));
  struct stat status = {};
  std::string text;
  absl::Status error;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    error = refuse("is not a regular file");
  } else if (secret && (status.st_mode & S_IROTH) != 0) {
    error = refuse("may be read by everybody; take that away: chmod o-r");
  } else {
    char bytes[16384];
    ssize_t count = 0;
    while ((count = read(fd, bytes, sizeof bytes)) > 0 && std::ssize(text) <= kMaxBytes) text.append(bytes, static_cast<std::size_t>(count));
    if (count < 0) error = refuse(absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (std::ssize(text) > kMaxBytes) error = refuse("is larger than 1 MiB");
    if (text.empty() && error.ok()) error = refuse("is empty");
  }
  close(fd);
  if (!error.ok()) return error;
  return text;
}

std::string_view Trimmed(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = line.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kBlank) - begin + 1);
}

bool FileWatch::Changed() {
  std::vector<Mark> marks;
  for (const std::string& path : paths_) {
    struct stat status = {};
    Mark mark;
    if (stat(path.c_str(), &status) == 0) {
      mark = {status.st_dev, status.st_ino, status.st_size, std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
              std::int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
    }
    marks.push_back(mark);
  }
  if (marks == marks_) return false;
  marks_ = std::move(marks);
  return true;
}

}  // namespace lossgauge::transport
