#include "server/api/text.h"

#include <cstdio>

namespace lossgauge::api {
namespace {

// Bytes of the character that starts at `text[i]`; 0 if none does (overlong forms, surrogates and values above U+10FFFF are none).
std::size_t CharacterBytes(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (i + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  if (first == 0xe0 && second < 0xa0) return 0;
  if (first == 0xed && second > 0x9f) return 0;
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;
  return length;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = CharacterBytes(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string ValidUtf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = CharacterBytes(text, i);
    if (length == 0) {
      result += "\xef\xbf\xbd";
      ++i;
    } else {
      result.append(text, i, length);
      i += length;
    }
  }
  return result;
}

std::string Quoted(std::string_view text, std::size_t max_bytes) {
  const std::string valid = ValidUtf8(text.substr(0, max_bytes * 2));
  std::string result = "\"";
  std::size_t i = 0;
  while (i < valid.size()) {
    const std::size_t length = CharacterBytes(valid, i);
    if (i + length > max_bytes) break;
    const auto first = static_cast<unsigned char>(valid[i]);
    if (first < 0x20 || first == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", first);
      result += escaped;
    } else {
      if (first == '"' || first == '\\') result += '\\';
      result.append(valid, i, length);
    }
    i += length;
  }
  result += i < valid.size() || text.size() > max_bytes * 2 ? "...\"" : "\"";
  return result;
}

std::uint64_t StableHash(std::string_view bytes, std::uint64_t seed) {
  std::uint64_t hash = seed;
  for (const char c : bytes) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace lossgauge::api
