// Text as lines, in bounded memory, whatever is in it: ends of line of every system, progress bars that go back with a carriage return (each state
// is a line), colour codes and other escapes of terminals removed.
#ifndef LOSSGAUGE_SERVER_REPLAY_LINE_READER_H_
#define LOSSGAUGE_SERVER_REPLAY_LINE_READER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "server/replay/byte_source.h"

namespace lossgauge::replay {

struct LogLine {
  std::string_view text;      // valid until the next call
  std::uint64_t number = 0;   // from 1, by line feeds: states of one progress bar share a number
  bool terminated = true;     // false: the file ends in it, perhaps in its middle, or it was cut at kMaxLineBytes
};

// Not thread-safe.
class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

  // UTF-8, or nearly. Both outlive the reader.
  LineReader(ByteSource* source, LogReport* report) : source_(source), report_(report) {}
  // False at the end. Lines that hold nothing are passed over.
  bool Next(LogLine* line);

 private:
  bool Fill();
  bool NextRaw(bool* terminated);

  ByteSource* const source_;
  LogReport* const report_;
  std::string buffer_;
  std::size_t position_ = 0;
  bool ended_ = false;
  bool pending_return_ = false;  // the last line ended in one: a line feed after it belongs to it
  bool at_line_start_ = true;
  std::uint64_t number_ = 0;
  std::string raw_;
  std::string clean_;
};

// `text` without terminal escapes and control characters but tab. `binary` is set if one of them was no control character of a terminal.
void CleanLine(std::string_view text, std::string* clean, bool* binary);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_LINE_READER_H_
