// Bytes of our own state blobs: little-endian, integers as LEB128 varints, strings and doubles as they are. A reader that runs past the end
// or meets nonsense turns bad and stays bad; values read from then on are zero, so that one check at the end is enough.
#ifndef LOSSGAUGE_SERVER_STATE_BYTE_CODEC_H_
#define LOSSGAUGE_SERVER_STATE_BYTE_CODEC_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::state {

class ByteWriter {
 public:
  void U64(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<char>(value));
  }
  // Zigzag: small magnitudes of either sign stay short.
  void I64(std::int64_t value) { U64((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63)); }
  void Bool(bool value) { U64(value ? 1 : 0); }
  void Fixed64(std::uint64_t value) {
    char raw[8];
    for (int i = 0; i < 8; ++i) raw[i] = static_cast<char>(value >> (8 * i));
    bytes_.append(raw, 8);
  }
  void F64(double value) { Fixed64(std::bit_cast<std::uint64_t>(value)); }
  void Fixed128(const lg_fixed128& value) {
    Fixed64(value.lo);
    Fixed64(static_cast<std::uint64_t>(value.hi));
  }
  void String(std::string_view value) {
    U64(value.size());
    bytes_.append(value);
  }
  std::string Take() { return std::move(bytes_); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t U64() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) return Fail();
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return Fail();
  }
  std::int64_t I64() {
    const std::uint64_t raw = U64();
    return static_cast<std::int64_t>(raw >> 1) ^ -static_cast<std::int64_t>(raw & 1);
  }
  bool Bool() { return U64() != 0; }
  std::uint64_t Fixed64() {
    if (bytes_.size() < 8) return Fail();
    std::uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes_[static_cast<std::size_t>(i)]);
    bytes_.remove_prefix(8);
    return value;
  }
  double F64() { return std::bit_cast<double>(Fixed64()); }
  lg_fixed128 Fixed128() {
    lg_fixed128 value;
    value.lo = Fixed64();
    value.hi = static_cast<std::int64_t>(Fixed64());
    return value;
  }
  std::string String() {
    const std::uint64_t size = U64();
    if (size > bytes_.size()) {
      Fail();
      return {};
    }
    std::string value(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return value;
  }
  // A count of elements that take at least one byte each: bounded by what is left, so that hostile counts allocate nothing.
  std::size_t Count() {
    const std::uint64_t count = U64();
    return count > bytes_.size() ? static_cast<std::size_t>(Fail()) : static_cast<std::size_t>(count);
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::uint64_t Fail() {
    ok_ = false;
    bytes_ = {};
    return 0;
  }
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_BYTE_CODEC_H_
