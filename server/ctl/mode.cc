#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

int Run(const Options& options, Io& io) {
  Connection connection(options, io);
  v1::SetModeRequest request;
  request.set_run(options.operand(0));
  request.set_mode(options.operand(1));
  request.set_by(options.Text("by", io.environment("USER")));
  if (request.by().empty()) {
    io.err << "lossgaugectl mode: who sets it? --by=NAME says it (USER is not set)\n";
    return kWrongUse;
  }
  v1::SetModeResponse answer;
  const auto context = connection.NewContext();
  const grpc::Status status = connection.stub().SetMode(context.get(), request, &answer);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(answer, true);
  } else {
    io.out << Printable(request.run()) << " is in mode " << Printable(answer.mode()) << "\n";
  }
  return kDone;
}

}  // namespace

Command ModeCommand() {
  return {.name = "mode",
          .operands = "RUN MODE",
          .summary = "whether the verdicts of a run are acted upon",
          .details = "MODE: advise; shadow (judged and shown, but health and alerts stay calm); policy (as the policy file says). It holds from now on "
                     "and over restarts of lossgauged.",
          .flags = {{"by", FlagKind::kText, "NAME", "who sets it (default: $USER)"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
