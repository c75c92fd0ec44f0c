#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/api/convert_verdict.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

Table::Cell AgeCell(const v1::Run& run) {
  if (!run.verdict().has_last_step_age()) return {"-"};
  return {Span(ToDuration(run.verdict().last_step_age()))};
}

int Run(const Options& options, Io& io) {
  Connection connection(options, io);
  v1::ListRunsResponse answer;
  const auto context = connection.NewContext();
  v1::ListRunsRequest request;
  request.set_include_past(options.Has("past"));
  const grpc::Status status = connection.stub().ListRuns(context.get(), request, &answer);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(answer, true);
    return kDone;
  }
  if (answer.runs().empty() && answer.past_runs().empty()) {
    io.out << "No runs. A job that opens a gauge in lossgauged's --ring_dir appears here by itself.\n";
    return kDone;
  }
  // Ended runs are at rest and come last.
  std::stable_sort(answer.mutable_runs()->begin(), answer.mutable_runs()->end(), [](const v1::Run& a, const v1::Run& b) {
    if (a.ended() != b.ended()) return b.ended();
    const int rank_a = api::Urgency(a.verdict().action());
    const int rank_b = api::Urgency(b.verdict().action());
    return rank_a != rank_b ? rank_a < rank_b : a.run() < b.run();
  });
  Table table({{.title = "RUN", .flexible = true}, {"VERDICT"}, {"STEP", true}, {"AGE", true}, {"LOSS", true}, {"OPEN", true}, {"REASON"}});
  for (const v1::Run& run : answer.runs()) {
    table.Add({{run.run().empty() ? "(no name)" : Printable(run.run()), Tone::kBold},
               {ActionName(run.verdict().action()), ToneOf(run.verdict().action())},
               {run.has_last_step() ? absl::StrCat(run.last_step().step()) : "-"},
               AgeCell(run),
               {Optional(run.last_step(), &v1::Step::has_loss_nats, &v1::Step::loss_nats)},
               {absl::StrCat(run.open_incidents_size())},
               {Printable(run.verdict().reason())}});
  }
  if (!table.empty()) table.Print(io);
  if (answer.past_runs().empty()) return kDone;
  Table past({{.title = "PAST RUN", .flexible = true}, {"LAST WORD"}});
  for (const v1::PastRun& run : answer.past_runs()) {
    past.Add({{run.run().empty() ? "(no name)" : Printable(run.run())}, {run.has_last_write_time() ? Clock(ToTime(run.last_write_time())) : "-"}});
  }
  past.Print(io);
  return kDone;
}

}  // namespace

Command RunsCommand() {
  return {.name = "runs",
          .operands = "",
          .summary = "list the runs, worst verdict first",
          .details = "AGE is the age of the last step, LOSS is in nats per token, OPEN counts open incidents. A long name is cut in its middle; --json has it whole.",
          .flags = {{"past", FlagKind::kSwitch, "", "those, too, that are only in the history: steps, export, incidents, compare and explain know them"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
