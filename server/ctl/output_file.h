// A file that is there whole or not at all: written beside its place and renamed at the end.
#ifndef LOSSGAUGE_SERVER_CTL_OUTPUT_FILE_H_
#define LOSSGAUGE_SERVER_CTL_OUTPUT_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lossgauge::ctl {

// Errors name the path. What was begun and not kept is removed.
class OutputFile {
 public:
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  absl::Status Write(std::string_view bytes);
  // Takes the place of what is there.
  absl::Status Keep();
  std::uint64_t bytes() const { return bytes_; }
  const std::string& partial_path() const { return partial_path_; }

 private:
  OutputFile(std::string path, std::string partial_path, int descriptor)
      : path_(std::move(path)), partial_path_(std::move(partial_path)), descriptor_(descriptor) {}

  std::string path_;
  std::string partial_path_;  // empty: nothing to remove
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_OUTPUT_FILE_H_
