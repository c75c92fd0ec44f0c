// Writes JSON for what has no protobuf message: the dump of a ring. Same habits as the protobuf mapping: 64-bit integers and values that are
// not finite as strings, UTF-8 only.
#ifndef LOSSGAUGE_SERVER_CTL_JSON_WRITER_H_
#define LOSSGAUGE_SERVER_CTL_JSON_WRITER_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace lossgauge::ctl {

// The caller opens and closes in pairs. An empty key is a value within an array. Indented by two spaces.
class JsonWriter {
 public:
  explicit JsonWriter(std::ostream& out) : out_(out) {}
  void OpenObject(std::string_view key = "");
  void OpenArray(std::string_view key = "");
  void CloseObject();
  void CloseArray();
  void Text(std::string_view key, std::string_view value_untrusted);  // broken UTF-8 becomes U+FFFD
  void Number(std::string_view key, double value);
  void Small(std::string_view key, std::uint32_t value);
  void Wide(std::string_view key, std::uint64_t value);
  void Wide(std::string_view key, std::int64_t value);
  void Bool(std::string_view key, bool value);
  // A value that is JSON already.
  void Raw(std::string_view key, std::string_view json);

 private:
  void Begin(std::string_view key);
  void Close(char bracket);

  std::ostream& out_;
  int depth_ = 0;
  bool first_ = true;
};

std::string JsonText(std::string_view value_untrusted);  // with its quotes
std::string JsonNumber(double value);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_JSON_WRITER_H_
