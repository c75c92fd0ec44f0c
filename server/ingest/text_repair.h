// Text from a ring is bytes that nobody checked. After this it is valid UTF-8 of bounded length.
#ifndef LOSSGAUGE_SERVER_INGEST_TEXT_REPAIR_H_
#define LOSSGAUGE_SERVER_INGEST_TEXT_REPAIR_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace lossgauge::ingest {

inline constexpr std::size_t kMaxRunBytes = 200;
inline constexpr std::size_t kMaxAttemptBytes = 120;

// Each byte that is not part of a valid UTF-8 sequence (overlong forms, surrogates and code points above U+10FFFF are not) becomes U+FFFD.
std::string RepairUtf8(std::string_view untrusted);

struct RepairedName {
  std::string name;
  bool repaired = false;
};

// A name to be a label and a key: valid UTF-8, never empty ("unnamed"), at most `max_bytes`. A name with repaired bytes or one that was cut
// ends in '~' and 8 hex digits of the original's hash, so that different names stay different.
RepairedName RepairName(std::string_view untrusted, std::size_t max_bytes);

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_TEXT_REPAIR_H_
