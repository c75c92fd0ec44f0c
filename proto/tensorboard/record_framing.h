// How event files frame their records (TFRecord): length, masked CRC-32C of the length, payload, masked CRC-32C of the payload; all words
// little-endian. Reference: the comment at the head of TensorFlow's record_writer.h. Header only; allocates nothing, never fails.
#ifndef LOSSGAUGE_TENSORBOARD_RECORD_FRAMING_H_
#define LOSSGAUGE_TENSORBOARD_RECORD_FRAMING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace lossgauge::tensorboard {

inline constexpr std::size_t kRecordHeadBytes = 12;  // length and its checksum
inline constexpr std::size_t kRecordTailBytes = 4;   // the payload's checksum

// CRC-32C (Castagnoli), reflected, polynomial 0x1EDC6F41. "123456789" gives 0xE3069283.
inline std::uint32_t Crc32c(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xffu] ^ (crc >> 8);
  return ~crc;
}

// What stands in a file: a checksum of data that holds checksums itself would be weak, so it is rotated and shifted.
inline std::uint32_t MaskedCrc32c(std::string_view bytes) {
  const std::uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class Word>
Word LoadLittleEndian(const char* bytes) {
  Word word = 0;
  for (std::size_t i = 0; i < sizeof(Word); ++i) word |= static_cast<Word>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return word;
}

template <class Word>
void AppendLittleEndian(Word word, std::string* out) {
  for (std::size_t i = 0; i < sizeof(Word); ++i) out->push_back(static_cast<char>(word >> (8 * i)));
}

// `head` is kRecordHeadBytes long. False: this is no beginning of a record.
inline bool ReadRecordHead(std::string_view head, std::uint64_t* payload_bytes) {
  *payload_bytes = LoadLittleEndian<std::uint64_t>(head.data());
  return MaskedCrc32c(head.substr(0, 8)) == LoadLittleEndian<std::uint32_t>(head.data() + 8);
}

// `tail` is kRecordTailBytes long.
inline bool PayloadMatches(std::string_view payload, std::string_view tail) {
  return MaskedCrc32c(payload) == LoadLittleEndian<std::uint32_t>(tail.data());
}

inline void AppendRecord(std::string_view payload, std::string* out) {
  const std::size_t begin = out->size();
  AppendLittleEndian(static_cast<std::uint64_t>(payload.size()), out);
  AppendLittleEndian(MaskedCrc32c(std::string_view(*out).substr(begin, 8)), out);
  out->append(payload);
  AppendLittleEndian(MaskedCrc32c(payload), out);
}

}  // namespace lossgauge::tensorboard

#endif  // LOSSGAUGE_TENSORBOARD_RECORD_FRAMING_H_
