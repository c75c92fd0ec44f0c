#include "server/ctl/terminal.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace lossgauge::ctl {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0 = not valid UTF-8
};

Character Decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 && first < 0xf5 ? 4 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xc2 && first < 0xe0 ? 2 : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  std::uint32_t code = first & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

// Control characters of both sets, and those that reorder the text around them.
bool IsUnprintable(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) ||
         code == 0x200e || code == 0x200f || code == 0xfeff;
}

std::size_t Columns(std::uint32_t code) {
  const bool combining = (code >= 0x300 && code < 0x370) || code == 0x200d || (code >= 0xfe00 && code <= 0xfe0f);
  if (combining) return 0;
  const bool wide = (code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xa4d0) || (code >= 0xac00 && code < 0xd7a4) ||
                    (code >= 0xf900 && code < 0xfb00) || (code >= 0xfe30 && code < 0xfe70) || (code >= 0xff00 && code < 0xff61) ||
                    (code >= 0x1f300 && code < 0x1fb00) || (code >= 0x20000 && code < 0x40000);
  return wide ? 2 : 1;
}

}  // namespace

std::string Printable(std::string_view text_untrusted) {
  std::string result;
  while (!text_untrusted.empty()) {
    const Character character = Decode(text_untrusted);
    const std::size_t taken = std::max<std::size_t>(character.bytes, 1);
    if (character.bytes == 0 || IsUnprintable(character.code)) {
      for (std::size_t i = 0; i < taken; ++i) absl::StrAppendFormat(&result, "\\x%02x", static_cast<unsigned char>(text_untrusted[i]));
    } else {
      result.append(text_untrusted.substr(0, taken));
    }
    text_untrusted.remove_prefix(taken);
  }
  return result;
}

std::size_t CharacterBytes(std::string_view text_untrusted) { return Decode(text_untrusted).bytes; }

std::size_t DisplayWidth(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Character character = Decode(text);
    width += character.bytes == 0 ? 1 : Columns(character.code);
    text.remove_prefix(std::max<std::size_t>(character.bytes, 1));
  }
  return width;
}

std::string Fit(const std::string& text, std::size_t width, bool unicode) {
  if (DisplayWidth(text) <= width) return text;
  if (width == 0) return "";
  std::string_view rest = text;
  std::size_t used = 0;
  while (!rest.empty()) {
    const Character character = Decode(rest);
    const std::size_t columns = character.bytes == 0 ? 1 : Columns(character.code);
    if (used + columns > width - 1) break;
    used += columns;
    rest.remove_prefix(std::max<std::size_t>(character.bytes, 1));
  }
  return text.substr(0, text.size() - rest.size()) + (unicode ? "…" : "~");
}

std::string FitMiddle(const std::string& text, std::size_t width, bool unicode) {
  if (DisplayWidth(text) <= width) return text;
  if (width == 0) return "";
  const std::string head = Fit(text, (width + 1) / 2, unicode);  // with the mark of what is missing
  const std::size_t room = width - DisplayWidth(head);
  std::string_view tail = text;
  while (DisplayWidth(tail) > room) tail.remove_prefix(std::max<std::size_t>(Decode(tail).bytes, 1));
  return head + std::string(tail);
}

std::string Coloured(const Io& io, Tone tone, const std::string& text) {
  if (!io.colour || tone == Tone::kPlain || text.empty()) return text;
  const char* code = "0";
  switch (tone) {
    case Tone::kPlain: break;
    case Tone::kDim: code = "2"; break;
    case Tone::kBold: code = "1"; break;
    case Tone::kGood: code = "36"; break;  // cyan: told from red by everyone
    case Tone::kWarning: code = "33"; break;
    case Tone::kBad: code = "1;31"; break;
    case Tone::kSevere: code = "1;35"; break;
  }
  return absl::StrFormat("\x1b[%sm%s\x1b[0m", code, text);
}

void Table::Print(Io& io) const {
  constexpr std::size_t kLeastFlexible = 20;
  constexpr std::size_t kMostFlexible = 40;
  constexpr std::size_t kLeastLast = 24;
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.title));
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i].text));
  }
  for (std::size_t i = 0; i + 1 < columns_.size(); ++i) {
    if (!columns_[i].flexible) continue;
    std::size_t others = 2 * (columns_.size() - 1) + kLeastLast;
    for (std::size_t j = 0; j + 1 < columns_.size(); ++j) others += j == i ? 0 : widths[j];
    widths[i] = std::min(widths[i], std::clamp(io.width > others ? io.width - others : 0, kLeastFlexible, kMostFlexible));
  }
  const auto print_row = [&](const std::vector<Cell>& row) {
    std::size_t used = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      std::string text = row[i].text;
      if (columns_[i].flexible) text = FitMiddle(text, widths[i], io.unicode);
      if (last && !columns_[i].right) text = Fit(text, std::max<std::size_t>(io.width > used ? io.width - used : 0, 12), io.unicode);
      const std::string padding(widths[i] > DisplayWidth(text) ? widths[i] - DisplayWidth(text) : 0, ' ');
      const std::string shown = Coloured(io, row[i].tone, text);
      if (columns_[i].right) {
        io.out << padding << shown;
      } else {
        io.out << shown << (last ? "" : padding);
      }
      if (!last) io.out << "  ";
      used += widths[i] + 2;
    }
    io.out << '\n';
  };
  std::vector<Cell> head;
  for (const Column& column : columns_) head.push_back({column.title, Tone::kDim});
  print_row(head);
  for (const auto& row : rows_) print_row(row);
}

std::vector<std::string> Wrap(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (!lines.back().empty() && DisplayWidth(lines.back()) + 1 + DisplayWidth(word) > width) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    lines.back() += word;
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  return lines;
}

void PrintFact(Io& io, const std::string& name, const std::string& text, std::size_t name_width) {
  const std::size_t indent = 2 + name_width + 1;
  std::string head = name;
  if (DisplayWidth(head) < name_width) head.append(name_width - DisplayWidth(head), ' ');
  io.out << "  " << Coloured(io, Tone::kDim, head) << ' ';
  const std::vector<std::string> lines = Wrap(text, io.width > indent + 20 ? io.width - indent : 20);
  for (std::size_t i = 0; i < lines.size(); ++i) io.out << (i == 0 ? "" : std::string(indent, ' ')) << lines[i] << '\n';
}

}  // namespace lossgauge::ctl
