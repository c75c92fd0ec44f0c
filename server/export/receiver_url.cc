#include "server/export/receiver_url.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/export/label_text.h"
#include "server/transport/secret_file.h"

namespace lossgauge::export_ {
namespace {

constexpr std::size_t kMaxUrlBytes = 2048;
constexpr std::size_t kMaxLabels = 32;

bool IsVisible(char c) { return c > 0x20 && c < 0x7f; }

bool IsTokenChar(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos; }

bool IsLabelName(std::string_view name) {
  if (name.empty() || name.size() > 128 || absl::ascii_isdigit(static_cast<unsigned char>(name.front()))) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; });
}

bool IsOurHeader(const std::string& lower) {
  constexpr std::array kOurs = {"content-encoding", "content-type",     "content-length",    "transfer-encoding", "host",
                                "connection",       "user-agent",       "x-prometheus-remote-write-version", "accept-encoding", "expect"};
  return std::find(kOurs.begin(), kOurs.end(), lower) != kOurs.end();
}

}  // namespace

std::string ReceiverUrl::Origin() const {
  const bool bracket = host.find(':') != std::string::npos;
  return absl::StrCat(tls ? "https://" : "http://", bracket ? "[" : "", host, bracket ? "]" : "", ":", port);
}
std::string ReceiverUrl::Text() const { return absl::StrCat(Origin(), path); }

absl::StatusOr<ReceiverUrl> ParseReceiverUrl(std::string_view text_untrusted) {
  const auto refuse = [](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("the URL ", why, "; write http://HOST:PORT/api/v1/write, or https://"));
  };
  std::string_view rest = text_untrusted;
  if (rest.size() > kMaxUrlBytes) return refuse("is longer than 2048 bytes");
  if (!std::all_of(rest.begin(), rest.end(), IsVisible)) return refuse("holds a byte that belongs into no URL");
  ReceiverUrl url;
  const std::size_t scheme_end = rest.find("://");
  const std::string scheme = absl::AsciiStrToLower(std::string(rest.substr(0, scheme_end == std::string_view::npos ? 0 : scheme_end)));
  if (scheme != "http" && scheme != "https") return refuse("begins neither with http:// nor with https://");
  url.tls = scheme == "https";
  rest.remove_prefix(scheme_end + 3);
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return refuse("has no path");
  url.path = std::string(rest.substr(slash));
  if (url.path.find('#') != std::string::npos) return refuse("has a fragment (#), which no server sees");
  std::string_view authority = rest.substr(0, slash);
  if (authority.find('@') != std::string_view::npos) return refuse("holds a name or password: put an Authorization line into the headers file");
  if (authority.find('?') != std::string_view::npos) return refuse("has no path before its query");
  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return refuse("has a bracket that is not closed");
    url.host = std::string(authority.substr(1, close - 1));
    if (url.host.find_first_not_of("0123456789abcdefABCDEF:.") != std::string::npos) return refuse("has no IPv6 address in its brackets");
    authority.remove_prefix(close + 1);
    has_port = authority.starts_with(':');
    if (!authority.empty() && !has_port) return refuse("goes on behind the bracket with something other than a port");
    if (has_port) port = authority.substr(1);
  } else {
    const std::size_t colon = authority.find(':');
    has_port = colon != std::string_view::npos;
    if (has_port) port = authority.substr(colon + 1);
    url.host = std::string(authority.substr(0, colon));
    const bool is_name = std::all_of(url.host.begin(), url.host.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
    });
    if (!is_name) return refuse("has a host that is no name or address; an IPv6 address needs brackets");
  }
  if (url.host.empty() || url.host.size() > 253) return refuse("has no host, or one of more than 253 bytes");
  std::uint32_t number = url.tls ? 443 : 80;
  if (has_port) {
    const bool digits = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits || !absl::SimpleAtoi(std::string(port), &number) || number == 0 || number > 65535) return refuse("has a port that is not from 1 to 65535");
  }
  url.port = static_cast<std::uint16_t>(number);
  return url;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseHeaderLines(std::string_view text_untrusted) {
  std::vector<std::pair<std::string, std::string>> headers;
  for (std::size_t number = 1; !text_untrusted.empty(); ++number) {
    const std::size_t end = text_untrusted.find('\n');
    const std::string_view line = transport::Trimmed(text_untrusted.substr(0, end));
    text_untrusted.remove_prefix(end == std::string_view::npos ? text_untrusted.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const auto refuse = [&](const char* why) { return absl::InvalidArgumentError(absl::StrCat("line ", number, " ", why)); };
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return refuse("is not NAME: VALUE");
    const std::string name(line.substr(0, colon));
    const std::string value(transport::Trimmed(line.substr(colon + 1)));
    if (name.empty() || !std::all_of(name.begin(), name.end(), IsTokenChar)) return refuse("has a name that is no header's");
    if (IsOurHeader(absl::AsciiStrToLower(name))) return refuse("sets a header that lossgauged sets itself");
    if (value.empty() || value.size() > 4096) return refuse("has a value of 0 or more than 4096 bytes");
    if (!std::all_of(value.begin(), value.end(), [](char c) { return IsVisible(c) || c == ' '; })) return refuse("holds a byte that is not printable ASCII");
    if (headers.size() == kMaxLabels) return refuse("is one header too many: 32 are taken");
    headers.emplace_back(name, value);
  }
  return headers;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseLabels(std::string_view text_untrusted) {
  std::vector<std::pair<std::string, std::string>> labels;
  while (!text_untrusted.empty()) {
    const std::size_t comma = text_untrusted.find(',');
    const std::string_view pair = text_untrusted.substr(0, comma);
    text_untrusted.remove_prefix(comma == std::string_view::npos ? text_untrusted.size() : comma + 1);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return absl::InvalidArgumentError("labels are NAME=VALUE, separated by commas");
    const std::string name(pair.substr(0, equals));
    const std::string value(pair.substr(equals + 1));
    if (!IsLabelName(name)) return absl::InvalidArgumentError("a label's name is letters, digits and _, and begins with no digit");
    if (name == "run" || absl::StartsWith(name, "__")) return absl::InvalidArgumentError(absl::StrCat("the label ", name, " is not for others to set"));
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat("the label ", name, " has no value, which is the same as no label"));
    if (std::any_of(labels.begin(), labels.end(), [&](const auto& known) { return known.first == name; })) {
      return absl::InvalidArgumentError(absl::StrCat("the label ", name, " is given twice"));
    }
    if (labels.size() == kMaxLabels) return absl::InvalidArgumentError("32 labels are taken, no more");
    labels.emplace_back(name, LabelText(value));
  }
  std::sort(labels.begin(), labels.end());
  return labels;
}

}  // namespace lossgauge::export_
