#include "server/main/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "server/api/nearest_name.h"

namespace lossgauge::main {
namespace {

constexpr int kMostDeep = 8;  // flag files that name flag files
constexpr std::streamsize kMostBytes = 1 << 20;

absl::CommandLineFlag* Find(const std::string& name) { return absl::FindCommandLineFlag(name); }

bool IsSwitch(const absl::CommandLineFlag& flag) { return flag.IsOfType<bool>(); }

absl::Status UnknownFlag(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [one, flag] : absl::GetAllFlags()) {
    if (IsOurs(*flag)) known.emplace_back(one);
  }
  const std::string nearest = api::Nearest(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag --", name, nearest.empty() ? "" : absl::StrCat(", did you mean --", nearest, "?")));
}

// Abseil would end the process over a bad value, and say neither what is expected nor where to read it.
absl::Status CheckValue(absl::CommandLineFlag* flag, const std::string& value) {
  std::string error;
  if (!IsOurs(*flag) || flag->ParseFrom(value, &error)) return absl::OkStatus();
  const char* expected = IsSwitch(*flag)                    ? "true or false"
                         : flag->IsOfType<absl::Duration>() ? "a time with its unit, such as 300ms, 5s or 2h"
                                                            : "a whole number";
  return absl::InvalidArgumentError(
      absl::StrCat("--", std::string(flag->Name()), " takes ", expected, ", not \"", value, "\""));
}

class Reader {
 public:
  explicit Reader(CommandLine* line) : line_(line) {}

  absl::Status Read(const std::vector<std::string>& arguments) {
    // Who gives --undefok knows of names that we do not.
    lenient_ =
        std::any_of(arguments.begin(), arguments.end(), [](const std::string& word) { return word.find("-undefok") <= 1; });
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i] == "--") {
        line_->words.insert(line_->words.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
        break;
      }
      const std::string* next = i + 1 < arguments.size() ? &arguments[i + 1] : nullptr;
      const absl::StatusOr<bool> took_next = Take(arguments[i], next);
      if (!took_next.ok()) return took_next.status();
      i += *took_next ? 1 : 0;
    }
    return absl::OkStatus();
  }

 private:
  // Whether `next` is the value of the flag in `word`.
  absl::StatusOr<bool> Take(const std::string& word, const std::string* next) {
    if (word.size() < 2 || word[0] != '-') {
      line_->words.push_back(word);
      return false;
    }
    const std::string text = word.substr(word[1] == '-' ? 2 : 1);
    const std::size_t equals = text.find('=');
    std::string name = text.substr(0, equals);
    std::replace(name.begin(), name.end(), '-', '_');
    std::optional<std::string> value;
    if (equals != std::string::npos) value = text.substr(equals + 1);

    absl::CommandLineFlag* flag = Find(name);
    // Abseil's library as Debian builds it takes a switch without a value for one whose value is the next word.
    if (flag != nullptr && IsSwitch(*flag) && !value) value = "true";
    if (flag == nullptr && !value && name.starts_with("no")) {
      if (absl::CommandLineFlag* negated = Find(name.substr(2)); negated != nullptr && IsSwitch(*negated)) {
        flag = negated;
        name = name.substr(2);
        value = "false";
      }
    }
    if (flag == nullptr) {
      if (!lenient_) return UnknownFlag(name);
      line_->words.push_back(word);
      return false;
    }
    const bool takes_next = !value;
    if (takes_next && next == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: --", name, "=..."));
    const absl::Status status = Give(name, flag, takes_next ? *next : *value);
    if (!status.ok()) return status;
    return takes_next;
  }

  absl::Status Give(const std::string& name, absl::CommandLineFlag* flag, const std::string& value) {
    if (name == "ring_dir") {
      line_->ring_dirs.push_back(value);
      return absl::OkStatus();
    }
    if (name == "flagfile") {
      for (const absl::string_view path : absl::StrSplit(value, ',')) {
        if (const absl::Status status = ReadFile(std::string(path)); !status.ok()) return status;
      }
      return absl::OkStatus();
    }
    line_->words.push_back(absl::StrCat("--", name, "=", value));
    return CheckValue(flag, value);
  }

  absl::Status ReadFile(const std::string& path) {
    std::string text(kMostBytes + 1, '\0');
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (file.is_open()) file.read(text.data(), kMostBytes + 1);
    if (!file.is_open() || file.bad())
      return absl::InvalidArgumentError(absl::StrCat("--flagfile: cannot read ", path, ": ", errno != 0 ? std::strerror(errno) : "it is no file to read"));
    if (file.gcount() > kMostBytes)
      return absl::InvalidArgumentError(absl::StrCat("--flagfile: ", path, " is longer than 1 MiB"));
    if (++depth_ > kMostDeep)
      return absl::InvalidArgumentError(absl::StrCat("--flagfile: ", path, " is the ninth within one another"));
    std::istringstream lines(text.substr(0, static_cast<std::size_t>(file.gcount())));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      const std::string word(absl::StripAsciiWhitespace(line));
      if (word.empty() || word[0] == '#') continue;
      const absl::Status status = word[0] == '-' && word != "--"
                                      ? Take(word, nullptr).status()
                                      : absl::InvalidArgumentError("no flag: lines are --name=value");
      if (!status.ok())
        return absl::InvalidArgumentError(absl::StrCat(path, ", line ", number, ": ", std::string(status.message())));
    }
    --depth_;
    return absl::OkStatus();
  }

  CommandLine* const line_;
  bool lenient_ = false;
  int depth_ = 0;
};

}  // namespace

bool IsOurs(const absl::CommandLineFlag& flag) { return flag.Filename().find("server/main/") != absl::string_view::npos; }

absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  if (const absl::Status status = Reader(&line).Read(arguments); !status.ok()) return status;
  return line;
}

}  // namespace lossgauge::main
