#include "server/replay/read_log.h"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/replay/bundle.h"
#include "server/replay/csv_log.h"
#include "server/replay/event_log.h"
#include "server/replay/json_log.h"
#include "server/replay/json_record.h"
#include "server/replay/line_reader.h"
#include "server/replay/point_maker.h"
#include "server/replay/text_log.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kHeadBytes = std::size_t{64} << 10;

constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kForeign = {{{"\x1f\x8b", "gzip: unpack it first"},
                                                                                   {"\x28\xb5\x2f\xfd", "zstd: unpack it first"},
                                                                                   {"BZh", "bzip2: unpack it first"},
                                                                                   {"\xfd" "7zXZ", "xz: unpack it first"},
                                                                                   {"PK\x03\x04", "a zip archive: unpack it first"},
                                                                                   {"PAR1", "Parquet: export it as CSV"},
                                                                                   {"SQLite format 3", "an SQLite database: export it as CSV"}}};

// Ends where the sink wants no more.
class WantedSource final : public ByteSource {
 public:
  WantedSource(ByteSource* source, const LogSink* sink) : source_(source), sink_(sink) {}
  std::size_t Read(char* buffer, std::size_t size) override { return sink_->WantsMore() ? source_->Read(buffer, size) : 0; }
  std::string error() const override { return source_->error(); }

 private:
  ByteSource* const source_;
  const LogSink* const sink_;
};

enum class Kind { kJsonDocument, kJsonLines, kCsv, kText };

struct Sniffed {
  Kind kind = Kind::kText;
  char delimiter = ',';
};

// By the first lines of `head`, which is UTF-8 or nearly.
Sniffed Sniff(std::string_view head) {
  LogReport unused;
  const auto source = MakeMemorySource(head);
  LineReader lines(source.get(), &unused);
  LogLine line;
  std::size_t looked_at = 0, objects = 0;
  char first = 0;
  std::optional<char> delimiter;
  LogRecord record;
  std::string header;
  bool header_may_come = true, is_table = false;
  while (looked_at < 64 && lines.Next(&line)) {
    const std::string_view text = line.text;
    const char c = text[text.find_first_not_of(" \t")];
    if (first == 0) first = c;
    if (header_may_come && c != '#') {
      delimiter = HeaderDelimiter(text);
      header = text;
      header_may_come = false;
    } else if (delimiter) {
      // "step 1, loss 2.5" could be names of columns, if it were not for the line below.
      is_table = is_table || IsRowBelow(header, text, *delimiter);
    }
    ++looked_at;
    record.Clear();
    if (c == '{' && line.terminated && ParseJsonRecord(text, &record) == JsonOutcome::kRecord && text.find_last_of('}') == text.find_last_not_of(" \t")) ++objects;
  }
  if (objects > 0 && objects * 2 >= looked_at && (objects > 1 || looked_at > 1 || line.terminated)) return {Kind::kJsonLines};
  if (first == '{' || first == '[') {
    // "[2026-01-01 10:00:00] ..." is a line of text.
    const std::size_t at = head.find(first);
    const std::size_t next = head.find_first_not_of(" \t\r\n", at + 1);
    const char then = next == std::string_view::npos ? '\0' : head[next];
    if (first == '{' ? (then == '"' || then == '}') : (then == '{' || then == '[' || then == ']')) return {Kind::kJsonDocument};
  }
  if (delimiter && is_table) return {Kind::kCsv, *delimiter};
  return {Kind::kText};
}

}  // namespace

absl::StatusOr<LogReport> ReadLog(ByteSource* source, LogSink* sink) {
  LogReport report;
  WantedSource wanted(source, sink);
  HeadSource bytes(&wanted, &report.bytes);
  const std::string_view raw = bytes.Head(kHeadBytes);
  for (const auto& [magic, what] : kForeign) {
    if (raw.starts_with(magic)) return absl::InvalidArgumentError(absl::StrCat("this is no log but ", absl::string_view(what.data(), what.size())));
  }
  PointMaker points(sink, &report);
  if (IsEventFile(raw)) {
    ReadEventFile(&bytes, &points, &report);
  } else {
    Utf8Source utf8(&bytes, &report);
    HeadSource text(&utf8, nullptr);
    const Sniffed sniffed = Sniff(text.Head(kHeadBytes));
    LineReader lines(&text, &report);
    report.format = kFormatText;
    switch (sniffed.kind) {
      case Kind::kJsonDocument: ReadJsonDocument(&text, &points, &report); break;
      case Kind::kJsonLines: ReadJsonLines(&lines, &points, &report); break;
      case Kind::kCsv:
        report.format = "csv";
        ReadCsvLog(sniffed.delimiter, &lines, &points, &report);
        break;
      case Kind::kText: ReadTextLog(&lines, &points, &report); break;
    }
  }
  points.Finish();
  if (const std::string error = source->error(); !error.empty()) report.read_error = absl::StrCat("reading failed: ", error);
  if (report.points + report.evaluations + report.checkpoints == 0) report.format = "unknown";
  return report;
}

absl::StatusOr<LogReport> ReadLogFile(const std::string& path, LogSink* sink) {
  if (IsBundle(path)) return ReadBundle(path, sink);
  auto source = OpenFile(path);
  if (!source.ok()) return source.status();
  auto report = ReadLog(source->get(), sink);
  if (!report.ok()) return absl::Status(report.status().code(), absl::StrCat(path, ": ", report.status().message()));
  if (!report->read_error.empty()) report->read_error = absl::StrCat(path, ": ", report->read_error);
  return report;
}

}  // namespace lossgauge::replay
