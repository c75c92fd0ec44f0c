// Flags and operands of a command, declared once: the declaration parses, checks, explains (--help) and completes.
#ifndef LOSSGAUGE_SERVER_CTL_OPTIONS_H_
#define LOSSGAUGE_SERVER_CTL_OPTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lossgauge::ctl {

struct Io;

enum class FlagKind { kSwitch, kText, kInteger, kDuration };

struct Flag {
  std::string name;  // without dashes
  FlagKind kind = FlagKind::kText;
  std::string placeholder;  // "N", "TEXT": shown in --help; empty for a switch
  std::string help;
  std::int64_t min = 0;  // of an integer
  std::int64_t max = INT64_MAX;
};

class Options;

struct Command {
  std::string name;
  std::string operands;  // "RUN", "RUN ACTION", "" ...: as many as there are words; "FILE...": one or more; "[ID]" at the
                         // end: may be left out
  std::string summary;  // one line
  std::string details;  // paragraphs below it in --help
  std::vector<Flag> flags;  // besides those of every command
  bool remote = true;  // asks lossgauged: has --address and --timeout
  int (*run)(const Options& options, Io& io) = nullptr;
};

// Values that were checked against the declaration; asking for an undeclared name is a programming error and gives the default.
class Options {
 public:
  const std::string& operand(std::size_t index) const { return operands_[index]; }
  const std::vector<std::string>& operands() const { return operands_; }
  bool Has(const std::string& flag) const { return values_.count(flag) != 0; }
  std::string Text(const std::string& flag, const std::string& otherwise = "") const;
  std::optional<std::int64_t> Integer(const std::string& flag) const;
  std::int64_t Integer(const std::string& flag, std::int64_t otherwise) const { return Integer(flag).value_or(otherwise); }

 private:
  friend absl::StatusOr<Options> ParseOptions(const Command& command, const std::vector<std::string>& arguments);
  std::vector<std::string> operands_;
  std::map<std::string, std::string> values_;
};

// `arguments` without the command's name. Flags may stand anywhere, as --name=value or --name value; after "--" all are operands. The error
// says which word is wrong and what was expected.
absl::StatusOr<Options> ParseOptions(const Command& command, const std::vector<std::string>& arguments);

// The command's own flags, then --address and --timeout if it asks lossgauged, then --json and --help.
std::vector<Flag> AllFlags(const Command& command);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_OPTIONS_H_
