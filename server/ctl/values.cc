#include "server/ctl/values.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lossgauge::ctl {

std::string Significant(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+inf" : "-inf";
  if (value == 0) return "0";
  const double size = std::fabs(value);
  if (size >= 1e6 || size < 1e-3) return absl::StrFormat("%.2e", value);
  const int digits = std::clamp(3 - static_cast<int>(std::floor(std::log10(size))), 0, 6);
  return absl::StrFormat("%.*f", digits, value);
}

absl::Time ToTime(const google::protobuf::Timestamp& timestamp) {
  return absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

std::string Clock(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone()); }

std::string Span(absl::Duration duration) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(duration));
  if (seconds < 10) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.0f d", seconds / 86400);
}

Tone ToneOf(v1::Action action) {
  switch (action) {
    case v1::CONTINUE: return Tone::kGood;
    case v1::WATCH: return Tone::kWarning;
    case v1::RESTART: return Tone::kBad;
    case v1::HALT: return Tone::kSevere;
    default: return Tone::kDim;
  }
}

std::string SeverityName(v1::Severity severity) {
  return severity != v1::SEVERITY_UNSPECIFIED && v1::Severity_IsValid(severity) ? absl::AsciiStrToLower(v1::Severity_Name(severity)) : "?";
}

Tone ToneOf(v1::Severity severity) {
  return severity == v1::CRITICAL ? Tone::kBad : severity == v1::WARNING ? Tone::kWarning : Tone::kPlain;
}

std::string ConditionName(const v1::Incident& incident) {
  return Printable(incident.kind().empty() ? incident.condition() : absl::StrCat(incident.condition(), "/", incident.kind()));
}

std::string EvidenceText(const v1::Evidence& evidence) {
  const std::string text = Printable(evidence.text());
  if (!text.empty() && evidence.value() == 0 && evidence.unit().empty()) return text;
  const bool whole = std::fabs(evidence.value()) < 1e15 && evidence.value() == std::floor(evidence.value());
  std::string result = whole ? absl::StrFormat("%.0f", evidence.value()) : Significant(evidence.value());
  if (!evidence.unit().empty()) absl::StrAppend(&result, " ", Printable(evidence.unit()));
  if (!text.empty()) absl::StrAppend(&result, " (", text, ")");
  return result;
}

}  // namespace lossgauge::ctl
