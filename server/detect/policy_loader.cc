// YAML in, policies out. yaml-cpp keeps repeated keys silently, and converts "0x10" or "1e3s" as it pleases: both are checked here.
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/detect/policy_fields.h"

namespace lossgauge::detect {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 16;
constexpr std::size_t kMaxRuns = 1000;

class Parser {
 public:
  explicit Parser(std::string name) : name_(std::move(name)) {}

  absl::StatusOr<PolicySet> Parse(const std::string& text) {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    PolicySet set;
    if (documents.empty()) return DefaultPolicies();
    // The others would be passed over without a word.
    if (documents.size() > 1) return Error(documents[1], absl::StrCat("a policy is one YAML document, and here are ", documents.size(), ", divided by '---'"));
    const YAML::Node& root = documents[0];
    if (root.IsNull()) return DefaultPolicies();
    if (absl::Status status = ReadPolicy(root, "", /*top=*/true, set.defaults); !status.ok()) return status;
    if (const YAML::Node runs = root["runs"]; runs.IsDefined()) {
      if (absl::Status status = ReadRuns(runs, set); !status.ok()) return status;
    }
    return set;
  }

 private:
  absl::Status Error(const YAML::Node& node, const std::string& message) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ":", node.Mark().line + 1, ": ", message));
  }

  // Keys of a mapping: scalars, each once.
  absl::Status CheckKeys(const YAML::Node& map, const std::string& where) const {
    if (!map.IsMap()) return Error(map, absl::StrCat("'", where, "' must be a mapping of keys to values"));
    std::set<std::string> seen;
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) return Error(entry.first, absl::StrCat("a key under '", where, "' is not a plain word"));
      if (!seen.insert(entry.first.Scalar()).second) {
        return Error(entry.first, absl::StrCat("key '", entry.first.Scalar(), "' appears twice"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadPolicy(const YAML::Node& map, const std::string& where, bool top, Policy& policy) const {
    if (absl::Status status = CheckKeys(map, where.empty() ? "the file" : where); !status.ok()) return status;
    std::string declared;
    for (const auto& entry : map) {
      const std::string& key = entry.first.Scalar();
      if (key == "version") {
        if (!entry.second.IsScalar() || entry.second.Scalar().empty() || entry.second.Scalar().size() > 64) {
          return Error(entry.second, "'version' must be a word of 1 to 64 characters");
        }
        declared = entry.second.Scalar();
      } else if (key == "mode") {
        if (!entry.second.IsScalar() || (entry.second.Scalar() != "advise" && entry.second.Scalar() != "shadow")) {
          return Error(entry.second, "'mode' must be advise or shadow");
        }
        policy.mode = entry.second.Scalar();
      } else if (key == "runs" && top) {
        continue;
      } else if (absl::Status status = ReadSection(entry.first, entry.second, policy); !status.ok()) {
        return status;
      }
    }
    if (policy.integrity_halt_steps > policy.integrity_window_steps) {
      return Error(map, absl::StrFormat("integrity.halt_steps (%g) is larger than integrity.window_steps (%g): it could never be reached",
                                        policy.integrity_halt_steps, policy.integrity_window_steps));
    }
    if (policy.stall_restart_seconds < policy.fresh_seconds) {
      return Error(map, absl::StrFormat("time.stall_restart_seconds (%g) is smaller than time.fresh_seconds (%g): a restart would be "
                                        "advised while data count as fresh",
                                        policy.stall_restart_seconds, policy.fresh_seconds));
    }
    policy.version = declared.empty() ? PolicyVersion(policy) : declared;
    return absl::OkStatus();
  }

  absl::Status ReadSection(const YAML::Node& name, const YAML::Node& map, Policy& policy) const {
    const std::string& section = name.Scalar();
    bool known = false;
    for (const PolicyField& field : PolicyFields()) known = known || field.section == section;
    if (!known) return Error(name, absl::StrCat("unknown key '", section, "'; known are version, mode, runs and ", Sections()));
    if (absl::Status status = CheckKeys(map, section); !status.ok()) return status;
    for (const auto& entry : map) {
      const PolicyField* field = Find(section, entry.first.Scalar());
      if (field == nullptr) {
        return Error(entry.first, absl::StrCat("unknown key '", section, ".", entry.first.Scalar(), "'; known are ", Keys(section)));
      }
      if (absl::Status status = ReadNumber(entry.second, *field, policy); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ReadNumber(const YAML::Node& node, const PolicyField& field, Policy& policy) const {
    const std::string path = absl::StrCat(std::string(field.section), ".", std::string(field.key));
    if (!node.IsScalar()) return Error(node, absl::StrCat("'", path, "' must be a number"));
    const std::string& text = node.Scalar();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      return Error(node, absl::StrCat("'", path, "' must be a plain number without a unit (the unit is part of the key), not '", text, "'"));
    }
    if (!(value >= field.low && value <= field.high)) {
      return Error(node, absl::StrFormat("'%s' must lie between %g and %g, not %s", path, field.low, field.high, text));
    }
    if (field.whole && value != std::floor(value)) return Error(node, absl::StrCat("'", path, "' must be a whole number, not ", text));
    policy.*field.value = value;
    return absl::OkStatus();
  }

  absl::Status ReadRuns(const YAML::Node& runs, PolicySet& set) const {
    if (absl::Status status = CheckKeys(runs, "runs"); !status.ok()) return status;
    if (runs.size() > kMaxRuns) return Error(runs, absl::StrCat("more than ", kMaxRuns, " runs"));
    for (const auto& entry : runs) {
      Policy policy = set.defaults;
      const std::string where = absl::StrCat("runs.", entry.first.Scalar());
      if (absl::Status status = ReadPolicy(entry.second, where, /*top=*/false, policy); !status.ok()) return status;
      set.runs.emplace(entry.first.Scalar(), std::move(policy));
    }
    return absl::OkStatus();
  }

  static const PolicyField* Find(std::string_view section, std::string_view key) {
    for (const PolicyField& field : PolicyFields()) {
      if (field.section == section && field.key == key) return &field;
    }
    return nullptr;
  }
  static std::string Sections() {
    std::string names;
    std::string_view last;
    for (const PolicyField& field : PolicyFields()) {
      if (field.section == last) continue;
      last = field.section;
      absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(last));
    }
    return names;
  }
  static std::string Keys(std::string_view section) {
    std::string names;
    for (const PolicyField& field : PolicyFields()) {
      if (field.section == section) absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(field.key));
    }
    return names;
  }

  std::string name_;
};

// yaml-cpp recurses over nested collections: a hostile file must not be able to spend the stack.
bool TooDeep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMaxDepth) return true;
  }
  int dashes = 0;  // "- - - - ..." nests as well
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') dashes = 0;
    if ((text[i] == '-' || text[i] == '?' || text[i] == ':') && (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == '\n')) ++dashes;
    if (dashes > 64) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<PolicySet> ParsePolicy(std::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes) return absl::InvalidArgumentError(absl::StrCat(name, ": larger than 1 MiB"));
  const std::size_t odd = text.find_first_of(std::string_view("\0\xfe\xff", 3));
  if (odd != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not UTF-8 text: byte ", static_cast<unsigned char>(text[odd]), " at offset ", odd));
  }
  if (TooDeep(text)) return absl::InvalidArgumentError(absl::StrCat(name, ": nested too deeply for a policy"));
  try {
    return Parser(name).Parse(std::string(text));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ":", error.mark.line + 1, ": ", error.msg));
  }
}

absl::StatusOr<PolicySet> LoadPolicy(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno == 0 ? EIO : errno, absl::StrCat("policy file ", path));
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return absl::ErrnoToStatus(errno == 0 ? EIO : errno, absl::StrCat("policy file ", path));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return ParsePolicy(text, path);
}

}  // namespace lossgauge::detect
