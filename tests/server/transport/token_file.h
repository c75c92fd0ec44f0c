// A file with one token, as --token_file wants it.
#ifndef LOSSGAUGE_TESTS_SERVER_TRANSPORT_TOKEN_FILE_H_
#define LOSSGAUGE_TESTS_SERVER_TRANSPORT_TOKEN_FILE_H_

#include <sys/stat.h>

#include <fstream>
#include <string>

namespace lossgauge::testing {

inline constexpr char kToken[] = "0123456789abcdef0123";

// kToken, readable by its owner only. Returns `path`.
inline std::string WriteTokenFile(const std::string& path) {
  std::ofstream(path) << kToken << "\n";
  chmod(path.c_str(), 0600);
  return path;
}

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_TRANSPORT_TOKEN_FILE_H_
