#include "server/ingest/text_repair.h"

#include <cstdint>
#include <cstdio>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::ingest {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the valid sequence at the start of `text`, or 0.
std::size_t SequenceBytes(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!continues(1) || !continues(2)) return 0;
    if (first == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
    if (first == 0xED && byte(1) >= 0xA0) return 0;  // surrogate
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!continues(1) || !continues(2) || !continues(3)) return 0;
    if (first == 0xF0 && byte(1) < 0x90) return 0;   // overlong
    if (first == 0xF4 && byte(1) >= 0x90) return 0;  // above U+10FFFF
    return 4;
  }
  return 0;
}

std::uint32_t Hash32(std::string_view text) {
  std::uint64_t hash = text.size();
  for (const char c : text) hash = lg_ring_mix(hash + static_cast<unsigned char>(c) + 1);
  return static_cast<std::uint32_t>(hash);
}

}  // namespace

std::string RepairUtf8(std::string_view untrusted) {
  std::string result;
  result.reserve(untrusted.size());
  while (!untrusted.empty()) {
    const std::size_t bytes = SequenceBytes(untrusted);
    if (bytes == 0) {
      result += kReplacement;
      untrusted.remove_prefix(1);
    } else {
      result += untrusted.substr(0, bytes);
      untrusted.remove_prefix(bytes);
    }
  }
  return result;
}

RepairedName RepairName(std::string_view untrusted, std::size_t max_bytes) {
  RepairedName result;
  if (untrusted.empty()) {
    result.name = "unnamed";
    result.repaired = true;
    return result;
  }
  result.name = RepairUtf8(untrusted);
  if (result.name == untrusted && result.name.size() <= max_bytes) return result;
  result.repaired = true;
  char suffix[16];
  std::snprintf(suffix, sizeof suffix, "~%08x", Hash32(untrusted));
  const std::size_t room = max_bytes - 9;
  if (result.name.size() > room) {
    std::size_t end = room;
    while (end > 0 && (static_cast<unsigned char>(result.name[end]) & 0xC0) == 0x80) --end;  // not inside a character
    result.name.resize(end);
  }
  result.name += suffix;
  return result;
}

}  // namespace lossgauge::ingest
