#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/pages.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int32_t kPageSize = 500;

std::string State(const v1::Incident& incident) {
  std::string state = incident.open() ? "open" : "resolved";
  if (incident.acknowledged()) absl::StrAppend(&state, ", acknowledged by ", Printable(incident.acknowledged_by()));
  if (!incident.hidden_by().empty()) absl::StrAppend(&state, ", symptom of ", Printable(incident.hidden_by()));
  return state;
}

void Print(const v1::Incident& incident, Io& io) {
  io.out << Coloured(io, Tone::kBold, Printable(incident.id())) << "  "
         << Coloured(io, incident.open() ? ToneOf(incident.severity()) : Tone::kDim, SeverityName(incident.severity())) << "  "
         << Coloured(io, Tone::kBold, ConditionName(incident)) << "  " << State(incident) << "\n";
  if (!incident.summary().empty()) PrintFact(io, "summary", Printable(incident.summary()));
  std::string where = absl::StrCat(incident.onset_step());
  if (incident.last_step() != incident.onset_step()) absl::StrAppend(&where, " to ", incident.last_step(), ", peak at ", incident.peak_step());
  if (incident.has_rank()) absl::StrAppend(&where, ", rank ", incident.rank());
  if (!incident.attempt().empty()) absl::StrAppend(&where, ", attempt ", Printable(incident.attempt()));
  PrintFact(io, "steps", where);
  if (incident.has_onset_time()) PrintFact(io, "began", Clock(ToTime(incident.onset_time())));
  if (incident.has_resolved_time()) PrintFact(io, "resolved", Clock(ToTime(incident.resolved_time())));
  if (incident.has_steps_to_recover()) PrintFact(io, "recovered in", absl::StrCat(incident.steps_to_recover(), " steps"));
  for (const v1::Evidence& evidence : incident.evidence()) PrintFact(io, Printable(evidence.name()), EvidenceText(evidence));
  if (!incident.acknowledged_comment().empty()) PrintFact(io, "comment", Printable(incident.acknowledged_comment()));
}

int Run(const Options& options, Io& io) {
  Connection connection(options, io);
  v1::ListIncidentsRequest request;
  request.set_run(options.operand(0));
  request.set_open_only(options.Has("open"));
  request.set_page_size(kPageSize);
  v1::ListIncidentsResponse all;
  const grpc::Status status = ForEachPage(connection, &v1::LossGauge::Stub::ListIncidents, request, [&](const v1::ListIncidentsResponse& page) {
    all.mutable_incidents()->MergeFrom(page.incidents());
    return true;
  });
  if (!status.ok()) return connection.Explain(status, io);
  if (options.Has("json")) {
    io.out << ToJson(all, true);
    return kDone;
  }
  if (all.incidents().empty()) io.out << (options.Has("open") ? "No open incidents.\n" : "No incidents.\n");
  for (const v1::Incident& incident : all.incidents()) Print(incident, io);
  return kDone;
}

}  // namespace

Command IncidentsCommand() {
  return {.name = "incidents",
          .operands = "RUN",
          .summary = "what was found in a run, with its evidence",
          .details = "",
          .flags = {{"open", FlagKind::kSwitch, "", "only those that are not resolved"}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
