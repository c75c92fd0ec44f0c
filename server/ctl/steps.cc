#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/pages.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int64_t kDefaultTail = 20;
constexpr std::int32_t kPageSize = 1000;

v1::ListStepsRequest MakeRequest(const Options& options) {
  v1::ListStepsRequest request;
  request.set_run(options.operand(0));
  request.set_attempt(options.Text("attempt"));
  if (const auto first = options.Integer("first")) request.set_first_step(*first);
  if (const auto last = options.Integer("last")) request.set_last_step(*last);
  request.set_include_ranks(options.Has("ranks"));
  request.set_include_thinned(true);
  const bool bounded = options.Has("first") || options.Has("last");
  const std::int64_t tail = options.Integer("tail", bounded ? 0 : kDefaultTail);
  request.set_tail(static_cast<std::int32_t>(tail));
  request.set_page_size(tail > 0 ? static_cast<std::int32_t>(tail) : kPageSize);
  return request;
}

std::vector<Table::Cell> Row(const v1::Step& step, bool with_attempt) {
  std::vector<Table::Cell> row;
  if (with_attempt) row.push_back({Printable(step.attempt())});
  const bool nonfinite = step.nonfinite_rows() > 0;
  row.insert(row.end(), {{step.has_thinned() ? absl::StrCat(step.thinned().first_step(), "..", step.step()) : absl::StrCat(step.step())},
                         {Optional(step, &v1::Step::has_loss_nats, &v1::Step::loss_nats), nonfinite ? Tone::kBad : Tone::kPlain},
                         {Optional(step, &v1::Step::has_perplexity, &v1::Step::perplexity)},
                         {Optional(step, &v1::Step::has_max_abs_logit, &v1::Step::max_abs_logit)},
                         {Optional(step, &v1::Step::has_log_z_mean_nats, &v1::Step::log_z_mean_nats)},
                         {Optional(step, &v1::Step::has_grad_norm, &v1::Step::grad_norm)},
                         {absl::StrCat(step.unmasked_tokens())},
                         {absl::StrCat(step.nonfinite_rows()), nonfinite ? Tone::kBad : Tone::kPlain},
                         {absl::StrCat(step.ranks(), step.complete() ? "" : "*"), step.complete() ? Tone::kPlain : Tone::kWarning}});
  return row;
}

void PrintTable(const v1::ListStepsResponse& answer, Io& io) {
  if (answer.steps().empty()) {
    io.out << "No steps.\n";
    return;
  }
  const bool with_attempt = std::any_of(answer.steps().begin(), answer.steps().end(),
                                        [&](const v1::Step& step) { return step.attempt() != answer.steps(0).attempt(); });
  std::vector<Table::Column> columns;
  if (with_attempt) columns.push_back({"ATTEMPT"});
  for (const char* title : {"STEP", "LOSS", "PPL", "MAX|Z|", "LOG Z", "GRAD", "TOKENS", "BAD", "RANKS"}) columns.push_back({title, true});
  Table table(std::move(columns));
  bool incomplete = false, thinned = false;
  for (const v1::Step& step : answer.steps()) {
    incomplete = incomplete || !step.complete();
    thinned = thinned || step.has_thinned();
    table.Add(Row(step, with_attempt));
  }
  table.Print(io);
  if (incomplete) io.out << "* ranks are missing from this step\n";
  if (thinned) io.out << "A..B: means over steps that the history has thinned; TOKENS and BAD are their sums, --json has the ranges\n";
}

int Run(const Options& options, Io& io) {
  if (options.Integer("first") > options.Integer("last") && options.Has("last")) {
    io.err << "lossgaugectl steps: --first=" << options.Text("first") << " lies after --last=" << options.Text("last") << "\n";
    return kWrongUse;
  }
  Connection connection(options, io);
  const v1::ListStepsRequest request = MakeRequest(options);
  v1::ListStepsResponse all;
  const grpc::Status status = ForEachPage(connection, &v1::LossGauge::Stub::ListSteps, request, [&](const v1::ListStepsResponse& page) {
    all.mutable_steps()->MergeFrom(page.steps());
    return request.tail() == 0;
  });
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(all, true);
  } else {
    PrintTable(all, io);
  }
  return kDone;
}

}  // namespace

Command StepsCommand() {
  return {.name = "steps",
          .operands = "RUN",
          .summary = "values of steps: loss, perplexity, max|z|, log Z, gradient norm",
          .details = "Without --first, --last or --tail: the newest 20. LOSS and LOG Z in nats, TOKENS in the loss, BAD counts "
                     "rows that were not finite. \"-\" means not measured.",
          .flags = {{"attempt", FlagKind::kText, "NAME", "only this attempt (default: all, in the order they came)"},
                    {"first", FlagKind::kInteger, "STEP", "from this step on"},
                    {"last", FlagKind::kInteger, "STEP", "up to this step, included"},
                    {"tail", FlagKind::kInteger, "N", "only the newest N, at most 10000", 1, 10000},
                    {"ranks", FlagKind::kSwitch, "", "with --json: each rank's own values too"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
