// Text on its way out: protobuf strings must be UTF-8, whatever a ring, a file name or an error message held.
#ifndef LOSSGAUGE_SERVER_API_TEXT_H_
#define LOSSGAUGE_SERVER_API_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lossgauge::api {

bool IsValidUtf8(std::string_view text);

// `text` itself if it is valid; else with U+FFFD in place of each byte that belongs to no character.
std::string ValidUtf8(std::string_view text);

// For error messages: in double quotes, control characters escaped, cut after `max_bytes` at a character's border.
std::string Quoted(std::string_view text, std::size_t max_bytes = 120);

// FNV-1a, 64 bits: the same in every process and version, so that tokens outlive a restart.
std::uint64_t StableHash(std::string_view bytes, std::uint64_t seed = 0xcbf29ce484222325u);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_TEXT_H_
