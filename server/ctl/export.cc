#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/output_file.h"
#include "server/ctl/pages.h"
#include "server/ctl/step_export.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int32_t kPageSize = 1000;

v1::ListStepsRequest MakeRequest(const Options& options) {
  v1::ListStepsRequest request;
  request.set_run(options.operand(0));
  request.set_attempt(options.Text("attempt"));
  if (const auto first = options.Integer("from")) request.set_first_step(*first);
  if (const auto last = options.Integer("to")) request.set_last_step(*last);
  request.set_include_ranks(options.Has("rank"));
  request.set_include_thinned(!options.Has("rank"));
  request.set_page_size(kPageSize);
  return request;
}

std::unique_ptr<StepExport> MakeExport(const std::string& format, const Options& options, const Io& io) {
  std::optional<std::uint32_t> rank;
  if (const auto given = options.Integer("rank")) rank = static_cast<std::uint32_t>(*given);
  if (format == "csv") return MakeCsvExport(rank);
  if (format == "jsonl") return MakeJsonlExport(rank);
  if (format == "tensorboard") return MakeTensorboardExport(rank, static_cast<double>(absl::ToUnixNanos(io.now())) / 1e9);
  return nullptr;
}

// A file holds names as they are; a terminal would obey what is in them.
std::string PrintableLines(const std::string& text) {
  std::string result;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    result += Printable(std::string_view(text).substr(from, end - from)) + "\n";
    from = end + 1;
  }
  return result;
}

int Run(const Options& options, Io& io) {
  const std::string format = options.Text("format", options.Has("json") ? "jsonl" : "csv");
  const std::unique_ptr<StepExport> rows = MakeExport(format, options, io);
  if (rows == nullptr) {
    io.err << "lossgaugectl export: --format=" << Printable(format) << " is none of csv, jsonl, tensorboard\n";
    return kWrongUse;
  }
  const std::string path = options.Text("output");
  if (path.empty() && format == "tensorboard" && io.terminal) {
    io.err << "lossgaugectl export: an event file is nothing for a terminal; name a file with -o, such as events.out.tfevents.lossgauge\n";
    return kWrongUse;
  }
  if (options.Has("from") && options.Has("to") && options.Integer("from") > options.Integer("to")) {
    io.err << "lossgaugectl export: --from=" << options.Text("from") << " lies after --to=" << options.Text("to") << "\n";
    return kWrongUse;
  }
  std::optional<OutputFile> file;
  const auto write = [&](const std::string& bytes) {
    if (file) return file->Write(bytes);
    io.out << (io.terminal ? PrintableLines(bytes) : bytes);
    return io.out.good() ? absl::OkStatus() : absl::DataLossError("standard output takes no more");
  };
  const auto failed = [&](const absl::Status& status) {
    io.err << "lossgaugectl export: " << std::string(status.message()) << "\n";
    return kFailed;
  };
  if (!path.empty()) {
    auto created = OutputFile::Create(path);
    if (!created.ok()) return failed(created.status());
    file.emplace(*std::move(created));
  }
  Connection connection(options, io);
  std::string bytes;
  rows->Begin(&bytes);
  absl::Status written;
  const grpc::Status status =
      ForEachPage(connection, &v1::LossGauge::Stub::ListSteps, MakeRequest(options), [&](const v1::ListStepsResponse& page) {
        for (const v1::Step& step : page.steps()) rows->Add(step, &bytes);
        written = write(bytes);
        bytes.clear();
        return written.ok();
      });
  if (!status.ok()) return connection.Explain(status, io);
  if (!written.ok()) return failed(written);
  if (file) {
    if (const absl::Status kept = file->Keep(); !kept.ok()) return failed(kept);
  }
  return kDone;
}

}  // namespace

Command ExportCommand() {
  return {.name = "export",
          .operands = "RUN",
          .summary = "all steps of a run as CSV, JSON lines or a TensorBoard event file",
          .details = "Names and units are those of the API. What was not measured is an empty cell, a missing key or no point; NaN stays NaN. "
                     "Old steps come as the history has them: rows with thinned_steps are means over so many. TensorBoard looks for files "
                     "with \"tfevents\" in their names.",
          .flags = {{"format", FlagKind::kText, "FORMAT", "csv (the default), jsonl (also --json) or tensorboard"},
                    {"attempt", FlagKind::kText, "NAME", "only this attempt (default: all, in the order they came)"},
                    {"rank", FlagKind::kInteger, "RANK", "this rank's own values, while the history holds steps whole", 0, UINT32_MAX},
                    {"from", FlagKind::kInteger, "STEP", "from this step on"},
                    {"to", FlagKind::kInteger, "STEP", "up to this step, included"},
                    {"output", FlagKind::kText, "FILE", "write here instead of to standard output; also -o FILE. Appears once it is whole"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
