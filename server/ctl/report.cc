#include "absl/strings/ascii.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

int Run(const Options& options, Io& io) {
  v1::Action action = v1::ACTION_UNSPECIFIED;
  if (!v1::Action_Parse(absl::AsciiStrToUpper(options.operand(1)), &action) || action == v1::ACTION_UNSPECIFIED || action == v1::UNKNOWN) {
    io.err << "lossgaugectl report: no action \"" << Printable(options.operand(1)) << "\": CONTINUE, WATCH, RESTART or HALT\n";
    return kWrongUse;
  }
  Connection connection(options, io);
  v1::ReportActionRequest request;
  request.set_run(options.operand(0));
  request.set_action(action);
  request.set_actor(options.Text("actor", io.environment("USER")));
  request.set_comment(options.Text("comment"));
  request.set_attempt(options.Text("attempt"));
  if (request.actor().empty()) {
    io.err << "lossgaugectl report: who acted? --actor=NAME says it (USER is not set)\n";
    return kWrongUse;
  }
  v1::ReportActionResponse answer;
  const auto context = connection.NewContext();
  const grpc::Status status = connection.stub().ReportAction(context.get(), request, &answer);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(answer, true);
  } else {
    io.out << ActionName(action) << " of " << Printable(request.run()) << " by " << Printable(request.actor()) << " is in the ledger, entry "
           << answer.ledger_entries() << "\n";
  }
  return kDone;
}

}  // namespace

Command ReportCommand() {
  return {.name = "report",
          .operands = "RUN ACTION",
          .summary = "say what was done with a run, for the restart ledger",
          .details = "ACTION: CONTINUE, WATCH, RESTART or HALT. lossgauged advises; what a scheduler or a person then did is "
                     "kept, so that a failure that comes back after a restart is known as such.",
          .flags = {{"actor", FlagKind::kText, "NAME", "who acted (default: $USER)"},
                    {"comment", FlagKind::kText, "TEXT", "why"},
                    {"attempt", FlagKind::kText, "NAME", "the attempt that was acted upon (default: the newest)"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
