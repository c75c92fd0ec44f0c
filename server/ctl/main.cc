#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "server/ctl/commands.h"
#include "server/ctl/terminal.h"

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::size_t TerminalWidth() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 40) return 80;
  return size.ws_col;
}

bool HasUnicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = Environment(name);
    if (value.empty()) continue;  // the first one that is set decides
    return value.find("UTF-8") != std::string::npos || value.find("utf8") != std::string::npos || value.find("UTF8") != std::string::npos;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  lossgauge::ctl::Io io{std::cout, std::cerr};
  io.terminal = isatty(STDOUT_FILENO) == 1;
  io.colour = io.terminal && Environment("NO_COLOR").empty() && Environment("TERM") != "dumb";
  io.unicode = !io.terminal || HasUnicode();
  if (io.terminal) io.width = TerminalWidth();
  io.environment = Environment;
  // gRPC's own log lines would stand between ours and the reader.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  const int code = lossgauge::ctl::RunCtl({argv + 1, argv + argc}, io);
  std::cout.flush();
  if (std::cout.good()) return code;
  std::cerr << "lossgaugectl: standard output takes no more: what was printed is not whole\n";
  return 1;
}
