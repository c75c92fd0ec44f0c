#include "server/export/label_text.h"

#include <cstdint>
#include <cstdio>

namespace lossgauge::export_ {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kNoName = "(unnamed)";
constexpr std::size_t kHashSuffixBytes = 9;

// Length of the valid UTF-8 sequence at the start of `text`; 0 if there is none. Overlong forms, surrogates and code points above
// U+10FFFF are invalid: Prometheus refuses a page that holds them.
std::size_t SequenceLength(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) second_min = 0xA0;
    if (lead == 0xED) second_max = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) second_min = 0x90;
    if (lead == 0xF4) second_max = 0x8F;
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < second_min || byte(1) > second_max) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

std::uint32_t Hash(std::string_view text) {  // FNV-1a: stable across processes and builds, unlike std::hash
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace

std::string WithHash(std::string_view text, std::string_view hashed) {
  char suffix[kHashSuffixBytes + 1];
  std::snprintf(suffix, sizeof suffix, "~%08x", Hash(hashed));
  return std::string(text) + suffix;
}

std::string LabelText(std::string_view untrusted) {
  if (untrusted.empty()) return std::string(kNoName);
  std::string clean;
  bool repaired = false;
  std::size_t at = 0;
  while (at < untrusted.size()) {
    const std::size_t length = SequenceLength(untrusted.substr(at));
    const bool valid = length > 0 && untrusted[at] != '\0';
    const std::string_view piece = valid ? untrusted.substr(at, length) : kReplacement;
    const bool last = at + (valid ? length : 1) == untrusted.size();
    const std::size_t room = kMaxLabelBytes - (repaired || !valid || !last ? kHashSuffixBytes : 0);
    if (clean.size() + piece.size() > room && (repaired || !valid || untrusted.size() > kMaxLabelBytes)) {
      repaired = true;
      break;
    }
    repaired = repaired || !valid;
    clean += piece;
    at += valid ? length : 1;
  }
  return repaired ? WithHash(clean, untrusted) : clean;
}

}  // namespace lossgauge::export_
