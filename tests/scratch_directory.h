// A directory of its own below the temporary directory, removed with everything in it at the end.
#ifndef LOSSGAUGE_TESTS_SCRATCH_DIRECTORY_H_
#define LOSSGAUGE_TESTS_SCRATCH_DIRECTORY_H_

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

namespace lossgauge {

class ScratchDirectory {
 public:
  ScratchDirectory() : path_((std::filesystem::temp_directory_path() / "lossgauge-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::abort();
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_SCRATCH_DIRECTORY_H_
