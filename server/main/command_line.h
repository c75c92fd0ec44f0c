// The words of a command line, flag files included, in the one form that Abseil's parser takes as they were meant.
#ifndef LOSSGAUGE_SERVER_MAIN_COMMAND_LINE_H_
#define LOSSGAUGE_SERVER_MAIN_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/status/statusor.h"

namespace lossgauge::main {

struct CommandLine {
  std::vector<std::string> words;      // operands, and flags as --name=value
  std::vector<std::string> ring_dirs;  // values of --ring_dir, which add up: of other flags the last one holds
};

// Whether a flag is lossgauged's own, and not one of a library.
bool IsOurs(const absl::CommandLineFlag& flag);

// `arguments` without the program's name. Names may have hyphens for underscores, as lossgaugectl's have; lines of a flag file
// are flags, one each. An error names the flag, or the file and the line, but repeats no line: the file may be a wrong one,
// with secrets in it.
absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& arguments);

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_COMMAND_LINE_H_
