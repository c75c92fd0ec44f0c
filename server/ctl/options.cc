#include "server/ctl/options.h"

#include <algorithm>
#include <charconv>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "server/api/nearest_name.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {
namespace {

std::optional<std::int64_t> ParseInteger(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::Status Check(const Flag& flag, const std::string& value) {
  if (flag.kind == FlagKind::kInteger) {
    const auto number = ParseInteger(value);
    if (!number || *number < flag.min || *number > flag.max) {
      const std::string bounds = flag.max == INT64_MAX ? absl::StrCat("of at least ", flag.min) : absl::StrCat("from ", flag.min, " to ", flag.max);
      return absl::InvalidArgumentError(absl::StrCat("--", flag.name, " takes a whole number ", bounds, ", not \"", value, "\""));
    }
  }
  if (flag.kind == FlagKind::kDuration) {
    absl::Duration duration;
    if (!absl::ParseDuration(value, &duration) || duration <= absl::ZeroDuration() || duration > absl::Hours(24)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag.name, " takes a time with its unit, such as 5s or 300ms, not \"", value, "\""));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> OperandNames(const Command& command) { return absl::StrSplit(command.operands, ' ', absl::SkipEmpty()); }

}  // namespace

std::string Options::Text(const std::string& flag, const std::string& otherwise) const {
  const auto found = values_.find(flag);
  return found == values_.end() ? otherwise : found->second;
}

std::optional<std::int64_t> Options::Integer(const std::string& flag) const {
  const auto found = values_.find(flag);
  return found == values_.end() ? std::nullopt : ParseInteger(found->second);
}

namespace {

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace

std::vector<Flag> AllFlags(const Command& command) {
  std::vector<Flag> flags = command.flags;
  if (command.remote) {
    flags.push_back({"address", FlagKind::kText, "HOST:PORT", "where lossgauged answers gRPC; else LOSSGAUGE_ADDRESS, else 127.0.0.1:9789"});
    flags.push_back({"tls-ca", FlagKind::kText, "FILE", "PEM of the authorities that lossgauged is checked against; else LOSSGAUGE_TLS_CA, else no TLS"});
    flags.push_back({"tls-cert", FlagKind::kText, "FILE", "PEM of our certificate, where lossgauged asks for one; else LOSSGAUGE_TLS_CERT"});
    flags.push_back({"tls-key", FlagKind::kText, "FILE", "PEM of its private key; else LOSSGAUGE_TLS_KEY"});
    flags.push_back({"token-file", FlagKind::kText, "FILE", "token for what writes, first line; else LOSSGAUGE_TOKEN_FILE"});
    flags.push_back({"timeout", FlagKind::kDuration, "TIME", "how long to wait for an answer, such as 300ms (default 5s)"});
  }
  flags.push_back({"json", FlagKind::kSwitch, "", "print JSON, as under /api/v1/, instead of text"});
  flags.push_back({"help", FlagKind::kSwitch, "", "say what this command does"});
  return flags;
}

absl::StatusOr<Options> ParseOptions(const Command& command, const std::vector<std::string>& arguments) {
  Options options;
  const std::vector<Flag> flags = AllFlags(command);
  bool only_operands = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    // Names on the wire are UTF-8. A file of `dump` may be named as it likes.
    if (command.remote && !IsUtf8(argument)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", argument, "\" is not valid UTF-8, as names of runs and all other texts are"));
    }
    if (only_operands || argument.size() < 2 || argument[0] != '-') {
      options.operands_.push_back(argument);
      continue;
    }
    if (argument == "--") {
      only_operands = true;
      continue;
    }
    const std::string text = argument == "-h" ? "--help" : argument == "-o" ? "--output" : argument;
    const std::size_t equals = text.find('=');
    std::string name = text.substr(text[1] == '-' ? 2 : 1, equals == std::string::npos ? equals : equals - (text[1] == '-' ? 2 : 1));
    std::replace(name.begin(), name.end(), '_', '-');  // lossgauged's own flags have underscores: either is meant
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& one) { return one.name == name; });
    if (flag == flags.end()) {
      std::vector<std::string> names;
      for (const Flag& one : flags) names.push_back(one.name);
      const std::string nearest = api::Nearest(name, names);
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", name, nearest.empty() ? std::string() : absl::StrCat(", did you mean --", nearest, "?")));
    }
    if (flag->kind == FlagKind::kSwitch) {
      if (equals != std::string::npos) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      options.values_[name] = "";
      continue;
    }
    std::string value;
    if (equals != std::string::npos) {
      value = text.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: --", name, "=", flag->placeholder));
    }
    // A flag that stands apart from its value: the value has not been looked at.
    if (command.remote && !IsUtf8(value)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": \"", value, "\" is not valid UTF-8"));
    }
    if (name == "address" && value.empty()) {
      return absl::InvalidArgumentError("--address is empty; give HOST:PORT, or leave it out for LOSSGAUGE_ADDRESS or 127.0.0.1:9789");
    }
    if (const absl::Status status = Check(*flag, value); !status.ok()) return status;
    options.values_[name] = value;
  }
  if (options.Has("help")) return options;
  const std::vector<std::string> wanted = OperandNames(command);
  const auto optional = std::count_if(wanted.begin(), wanted.end(), [](const std::string& name) { return name.starts_with('['); });
  if (options.operands_.size() + static_cast<std::size_t>(optional) < wanted.size()) {
    return absl::InvalidArgumentError(absl::StrCat(wanted[options.operands_.size()], " is missing"));
  }
  const bool takes_more = !wanted.empty() && wanted.back().ends_with("...");
  if (options.operands_.size() > wanted.size() && !takes_more) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected \"", options.operands_[wanted.size()], "\""));
  }
  return options;
}

}  // namespace lossgauge::ctl
