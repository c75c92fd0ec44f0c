// One run of lossgaugectl inside the test: what it was asked, what it wrote, how it ended.
#ifndef LOSSGAUGE_TESTS_SERVER_CTL_SESSION_H_
#define LOSSGAUGE_TESTS_SERVER_CTL_SESSION_H_

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "server/ctl/commands.h"

namespace lossgauge::ctl {

struct Session {
  std::map<std::string, std::string> environment;
  bool terminal = false;
  bool colour = false;
  std::size_t width = 80;

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out_stream;
    std::ostringstream err_stream;
    Io io{out_stream, err_stream};
    io.terminal = terminal;
    io.colour = colour;
    io.width = width;
    io.environment = [this](const char* name) { return environment.count(name) != 0 ? environment.at(name) : std::string(); };
    const int code = RunCtl(arguments, io);
    out = out_stream.str();
    err = err_stream.str();
    return code;
  }

  std::string out;
  std::string err;
};

inline std::size_t LongestLine(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, DisplayWidth(line));
  return longest;
}

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_TESTS_SERVER_CTL_SESSION_H_
