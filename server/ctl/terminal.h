// Where a command writes, and how text is made fit for a terminal. Nothing here keeps state between calls.
#ifndef LOSSGAUGE_SERVER_CTL_TERMINAL_H_
#define LOSSGAUGE_SERVER_CTL_TERMINAL_H_

#include <cstddef>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lossgauge::ctl {

// All that a command knows of the world, so that a test can be one. Used by one thread at a time.
struct Io {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  // `out` is one: lines may be rewritten
  bool colour = false;
  bool unicode = true;  // the terminal's character set has block elements
  std::size_t width = 80;  // columns
  std::function<std::string(const char* name)> environment = [](const char*) { return std::string(); };
  std::function<absl::Time()> now = [] { return absl::Now(); };
};

// `text_untrusted` with control characters and broken UTF-8 written as \xNN: a run's name must not move the cursor of whoever lists it.
std::string Printable(std::string_view text_untrusted);

// Bytes of the first character of `text_untrusted` (not empty), 0 if it is not valid UTF-8.
std::size_t CharacterBytes(std::string_view text_untrusted);

// Columns that valid UTF-8 takes: wide characters two, combining ones none.
std::size_t DisplayWidth(std::string_view text);

// At most `width` columns; what is cut is shown by "…" (or "~" without Unicode).
std::string Fit(const std::string& text, std::size_t width, bool unicode);
// Likewise, but cut in the middle: names that share a prefix differ at their end.
std::string FitMiddle(const std::string& text, std::size_t width, bool unicode);

// Lines of at most `width` columns, broken at spaces; a longer word stays whole, because paths are copied. At least one line.
std::vector<std::string> Wrap(std::string_view text, std::size_t width);

enum class Tone { kPlain, kDim, kBold, kGood, kWarning, kBad, kSevere };
// With colour codes around it if the terminal wants them.
std::string Coloured(const Io& io, Tone tone, const std::string& text);

// Columns separated by two spaces, as wide as their widest cell; the last column is cut at the terminal's width.
// A flexible column gives up width (down to 20 columns, never more than 40) so that the last one keeps some.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;
    bool flexible = false;
  };
  struct Cell {
    std::string text;
    Tone tone = Tone::kPlain;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  void Print(Io& io) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// "  name          text" lines; names padded to `name_width`, long texts are wrapped below themselves.
void PrintFact(Io& io, const std::string& name, const std::string& text, std::size_t name_width = 13);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_TERMINAL_H_
