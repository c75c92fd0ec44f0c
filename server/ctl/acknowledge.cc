#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

int Run(const Options& options, Io& io) {
  Connection connection(options, io);
  v1::AcknowledgeIncidentRequest request;
  request.set_id(options.operand(0));
  request.set_by(options.Text("by", io.environment("USER")));
  request.set_comment(options.Text("comment"));
  if (request.by().empty()) {
    io.err << "lossgaugectl ack: who acknowledges? --by=NAME says it (USER is not set)\n";
    return kWrongUse;
  }
  v1::Incident incident;
  const auto context = connection.NewContext();
  const grpc::Status status = connection.stub().AcknowledgeIncident(context.get(), request, &incident);
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(incident, true);
  } else {
    io.out << Printable(incident.id()) << " (" << ConditionName(incident) << " of " << Printable(incident.run()) << ") acknowledged by "
           << Printable(incident.acknowledged_by()) << "\n";
  }
  return kDone;
}

}  // namespace

Command AcknowledgeCommand() {
  return {.name = "ack",
          .operands = "INCIDENT",
          .summary = "acknowledge an incident: someone is on it",
          .details = "INCIDENT is the id that `lossgaugectl incidents RUN` shows. The verdict does not change by it, but that an open "
                     "level_shift ends: its level is the normal one from there on.",
          .flags = {{"by", FlagKind::kText, "NAME", "who acknowledges (default: $USER)"},
                    {"comment", FlagKind::kText, "TEXT", "what is known or being done"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
