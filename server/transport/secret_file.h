// Small files with keys, certificates and tokens, read so that they may be replaced while we run.
#ifndef LOSSGAUGE_SERVER_TRANSPORT_SECRET_FILE_H_
#define LOSSGAUGE_SERVER_TRANSPORT_SECRET_FILE_H_

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lossgauge::transport {

// The whole file. Errors name `flag` and path: not readable, no regular file, empty, more than 1 MiB; and with `secret`, readable by everybody.
absl::StatusOr<std::string> ReadSmallFile(const std::string& flag, const std::string& path, bool secret);

// Without the blanks, tabs and carriage returns around it.
std::string_view Trimmed(std::string_view line);

// Tells whether files were replaced or written: by device, inode, size and times.
class FileWatch {
 public:
  explicit FileWatch(std::vector<std::string> paths) : paths_(std::move(paths)) {}
  // Whether they differ from what they were at the call before; true at the first.
  bool Changed();

 private:
  struct Mark {
    std::uint64_t device = 0, inode = 0;
    std::int64_t size = -1, modified_ns = 0, changed_ns = 0;
    auto operator<=>(const Mark&) const = default;
  };
  const std::vector<std::string> paths_;
  std::vector<Mark> marks_;
};

// True at most once in an interval, from the first call on; not thread-safe.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Pace(std::chrono::milliseconds interval) : interval_(interval) {}
  bool Due() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return false;
    next_ = now + interval_;
    return true;
  }

 private:
  const std::chrono::milliseconds interval_;
  Clock::time_point next_{};
};

}  // namespace lossgauge::transport

#endif  // LOSSGAUGE_SERVER_TRANSPORT_SECRET_FILE_H_
