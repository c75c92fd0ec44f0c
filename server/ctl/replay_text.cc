#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/api/convert_incident.h"
#include "server/ctl/replay_output.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

std::string Count(std::uint64_t number, const char* one, const char* many) { return absl::StrCat(number, " ", number == 1 ? one : many); }

std::string Text(std::string_view text) { return std::string(text); }

v1::Action ToAction(state::Action action) { return static_cast<v1::Action>(action); }

Tone ToneOf(state::Severity severity) {
  switch (severity) {
    case state::Severity::kCritical: return Tone::kBad;
    case state::Severity::kWarning: return Tone::kWarning;
    case state::Severity::kInfo: break;
  }
  return Tone::kDim;
}

// "step 1200", and the attempt where the log has more than one.
std::string Where(const replay::Moment& moment, bool many_attempts) {
  if (moment.attempt.empty()) return "before";
  return absl::StrCat("step ", moment.step, many_attempts ? absl::StrCat(" of attempt ", Printable(moment.attempt)) : "");
}

void PrintFile(const ReplayedFile& file, Io& io) {
  io.out << Coloured(io, Tone::kBold, Printable(file.path)) << "\n";
  if (!file.error.empty()) {
    PrintFact(io, "unreadable", Printable(file.error));
    if (file.points > 0) PrintFact(io, "judged", absl::StrCat(Count(file.points, "point", "points"), " that stood before"));
    if (file.report.format.empty()) return;
  }
  const replay::LogReport& report = file.report;
  std::string what = absl::StrCat(report.format, ", ", Count(report.points, "point", "points"));
  if (!report.loss_name.empty()) absl::StrAppend(&what, ", loss is \"", Printable(report.loss_name), "\"");
  if (report.attempts > 1) absl::StrAppend(&what, ", ", report.attempts, " attempts: the steps go back");
  if (report.evaluations > 0) absl::StrAppend(&what, ", ", Count(report.evaluations, "evaluation", "evaluations"));
  if (report.checkpoints > 0) absl::StrAppend(&what, ", ", Count(report.checkpoints, "checkpoint", "checkpoints"));
  if (report.skipped_iterations > 0) absl::StrAppend(&what, ", ", Count(report.skipped_iterations, "skipped iteration", "skipped iterations"));
  PrintFact(io, "read", what);
  for (const std::string& note : report.notes) PrintFact(io, "note", Printable(note));
  for (std::size_t i = 0; i < report.oddities.size(); ++i) {
    const replay::OddityCount& entry = report.oddities[i];
    if (entry.count == 0) continue;
    const std::string lines = entry.first_line == entry.last_line ? absl::StrCat("line ", entry.first_line)
                                                                 : absl::StrCat("lines ", entry.first_line, " to ", entry.last_line);
    PrintFact(io, "oddity", absl::StrCat(entry.count, " x ", Text(replay::OddityExplanation(static_cast<replay::Oddity>(i))), " (", lines, ")"));
  }
}

void PrintIncident(const replay::IncidentLife& life, bool many_attempts, Io& io) {
  const state::Incident& incident = life.incident;
  v1::Incident message;
  api::ToMessage(incident, &message);
  io.out << "  " << Coloured(io, ToneOf(life.worst), Text(state::SeverityName(life.worst))) << "  " << Coloured(io, Tone::kBold, ConditionName(message))
         << "  " << Where({0, 0, incident.attempt, incident.onset_step}, many_attempts);
  if (incident.last_step != incident.onset_step) io.out << " to " << incident.last_step;
  io.out << "\n";
  PrintFact(io, "  summary", Printable(incident.summary));
  std::string said = Where(life.first, many_attempts);
  if (life.warned && life.warned->point != life.first.point) absl::StrAppend(&said, ", above info at ", Where(*life.warned, many_attempts));
  if (life.critical && (!life.warned || life.critical->point != life.warned->point)) {
    absl::StrAppend(&said, ", critical at ", Where(*life.critical, many_attempts));
  }
  absl::StrAppend(&said, life.resolved ? absl::StrCat(", resolved at ", Where(*life.resolved, many_attempts)) : ", never resolved");
  PrintFact(io, "  said", said);
}

}  // namespace

void PrintReplay(const ReplayedRun& run, Io& io) {
  for (const ReplayedFile& file : run.files) PrintFile(file, io);
  if (run.points == 0) return;
  const replay::ReplayResult& result = run.result;
  bool many_attempts = false;
  for (const replay::VerdictChange& change : result.verdicts) {
    many_attempts = many_attempts || (!change.at.attempt.empty() && change.at.attempt != result.verdicts.back().at.attempt);
  }
  io.out << "Verdicts\n";
  std::size_t width = 0;
  for (const replay::VerdictChange& change : result.verdicts) width = std::max(width, DisplayWidth(Where(change.at, many_attempts)));
  for (const replay::VerdictChange& change : result.verdicts) {
    const v1::Action action = ToAction(change.verdict.action);
    PrintFact(io, Where(change.at, many_attempts), absl::StrCat(ActionName(action), "  ", Printable(change.verdict.reason)), width + 1);
  }
  if (result.verdicts_left_out > 0) io.out << "  and " << Count(result.verdicts_left_out, "more change", "more changes") << "\n";
  io.out << (result.incidents.empty() ? "No incidents\n" : "Incidents\n");
  for (const replay::IncidentLife& life : result.incidents) PrintIncident(life, many_attempts, io);
  if (result.incidents_left_out > 0) io.out << "  and " << Count(result.incidents_left_out, "more incident", "more incidents") << "\n";
  if (result.points_left_out > 0) io.out << "Not judged: " << Count(result.points_left_out, "point", "points") << " of more attempts than are looked at\n";
  io.out << "Worst verdict: " << Coloured(io, ToneOf(ToAction(result.worst)), ActionName(ToAction(result.worst))) << "\n";
}

}  // namespace lossgauge::ctl
