#include "server/replay/line_reader.h"

#include <algorithm>

namespace lossgauge::replay {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr char kEscape = '\x1b';

}  // namespace

void CleanLine(std::string_view text, std::string* clean, bool* binary) {
  clean->clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == kEscape) {
      if (i + 1 < text.size() && text[i + 1] == '[') {  // CSI: parameters, then one letter
        i += 2;
        while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
      } else if (i + 1 < text.size() && text[i + 1] == ']') {  // OSC, such as a title or a link: up to BEL or ST
        i += 2;
        while (i < text.size() && text[i] != '\a' && text[i] != kEscape) ++i;
        if (i < text.size() && text[i] == kEscape) ++i;
      } else {
        ++i;
      }
      continue;
    }
    if (static_cast<unsigned char>(c) < ' ' && c != '\t') {
      if (c != '\b' && c != '\a' && c != '\f' && c != '\v') *binary = true;
      continue;
    }
    clean->push_back(c);
  }
}

bool LineReader::Fill() {
  if (ended_) return false;
  buffer_.resize(kChunkBytes);
  position_ = 0;
  const std::size_t got = source_->Read(buffer_.data(), kChunkBytes);
  buffer_.resize(got);
  ended_ = got == 0;
  return !ended_;
}

bool LineReader::NextRaw(bool* terminated) {
  raw_.clear();
  bool any = false, overlong = false;
  *terminated = true;
  for (;;) {
    if (position_ >= buffer_.size() && !Fill()) {
      *terminated = false;
      break;
    }
    if (pending_return_) {  // "\r\n" is one end of line, even across two chunks
      pending_return_ = false;
      if (buffer_[position_] == '\n') {
        ++position_;
        at_line_start_ = true;
        continue;
      }
    }
    const std::size_t end = buffer_.find_first_of("\r\n", position_);
    const std::size_t stop = std::min(end, buffer_.size());
    if (at_line_start_) ++number_;
    at_line_start_ = false;
    any = true;
    const std::size_t room = kMaxLineBytes - raw_.size();
    raw_.append(buffer_, position_, std::min(room, stop - position_));
    overlong = overlong || stop - position_ > room;
    position_ = stop;
    if (end == std::string::npos) continue;
    pending_return_ = buffer_[end] == '\r';
    at_line_start_ = !pending_return_;
    position_ = end + 1;
    break;
  }
  if (overlong) {
    report_->Count(Oddity::kOverlongLine, number_);
    *terminated = false;  // for all that is known it was cut within a number
  }
  report_->lines = number_;
  return any;
}

bool LineReader::Next(LogLine* line) {
  bool terminated = true;
  while (NextRaw(&terminated)) {
    bool binary = false;
    CleanLine(raw_, &clean_, &binary);
    if (binary) report_->Count(Oddity::kBinary, number_);
    if (!IsUtf8(clean_)) report_->Count(Oddity::kInvalidUtf8, number_);
    if (clean_.find_first_not_of(" \t") == std::string::npos) continue;
    *line = {clean_, number_, terminated};
    return true;
  }
  return false;
}

}  // namespace lossgauge::replay
