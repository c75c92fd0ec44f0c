// Bytes of a judge's saved state: little-endian fixed-size numbers and length-prefixed text. The reader trusts nothing: once anything is
// out of bounds, every further read gives zeros and ok() stays false.
#ifndef LOSSGAUGE_SERVER_DETECT_STATE_CODEC_H_
#define LOSSGAUGE_SERVER_DETECT_STATE_CODEC_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace lossgauge::detect {

class StateWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T> && std::endian::native == std::endian::little);
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    bytes_.append(bytes, sizeof(T));
  }
  template <typename T>
  void PutOptional(const std::optional<T>& value) {
    Put<std::uint8_t>(value.has_value() ? 1 : 0);
    if (value) Put(*value);
  }
  // Cut at 65535 bytes.
  void PutText(std::string_view text) {
    text = text.substr(0, 0xffff);
    Put(static_cast<std::uint16_t>(text.size()));
    bytes_.append(text.data(), text.size());
  }
  std::size_t size() const { return bytes_.size(); }
  std::string Take() { return std::move(bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class StateReader {
 public:
  explicit StateReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (bytes_.size() < sizeof(T)) {
      Fail();
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  // A number in [low, high]; anything else, NaN included, fails the reader.
  template <typename T>
  T GetIn(T low, T high) {
    const T value = Get<T>();
    if (!(value >= low && value <= high)) {
      Fail();
      return low;
    }
    return value;
  }
  bool GetBool() { return GetIn<std::uint8_t>(0, 1) == 1; }
  // A step number or a count of steps: differences of two never overflow.
  std::int64_t GetStep() { return GetIn<std::int64_t>(-1, std::int64_t{1} << 61); }
  // Nanoseconds since the epoch, likewise.
  std::int64_t GetTime() { return GetIn<std::int64_t>(0, std::int64_t{1} << 61); }
  double GetFinite() { return GetIn<double>(-1e300, 1e300); }
  template <typename T>
  std::optional<T> GetOptional() {
    if (!GetBool()) return std::nullopt;
    return Get<T>();
  }
  std::string GetText(std::size_t max_bytes) {
    const std::size_t size = Get<std::uint16_t>();
    if (size > max_bytes || size > bytes_.size()) {
      Fail();
      return {};
    }
    std::string text(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return text;
  }
  void Fail() {
    ok_ = false;
    bytes_ = {};
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_STATE_CODEC_H_
