#include "server/api/convert_incident.h"
#include "server/api/convert_verdict.h"
#include "server/ctl/connection.h"
#include "server/ctl/replay_output.h"

namespace lossgauge::ctl {
namespace {

constexpr char kInstance[] = "replay";

// A message is one line with its end; within other JSON it needs none.
std::string Inner(const google::protobuf::Message& message) {
  std::string json = ToJson(message, false);
  while (!json.empty() && json.back() == '\n') json.pop_back();
  return json;
}

void WriteMoment(std::string_view key, const replay::Moment& moment, JsonWriter& json) {
  json.OpenObject(key);
  json.Wide("point", moment.point);
  json.Wide("line", moment.line);
  json.Text("attempt", moment.attempt);
  json.Wide("step", moment.step);
  json.CloseObject();
}

void WriteMoment(std::string_view key, const std::optional<replay::Moment>& moment, JsonWriter& json) {
  if (moment) WriteMoment(key, *moment, json);
}

void WriteFile(const ReplayedFile& file, JsonWriter& json) {
  json.OpenObject();
  json.Text("file", file.path);
  if (!file.error.empty()) {
    json.Text("error", file.error);
    if (file.report.format.empty()) {
      json.Wide("points", file.points);
      json.CloseObject();
      return;
    }
  }
  const replay::LogReport& report = file.report;
  json.Text("format", report.format);
  json.Text("lossName", report.loss_name);
  json.Text("encoding", report.encoding);
  json.Wide("bytes", report.bytes);
  json.Wide("lines", report.lines);
  json.Wide("points", report.points);
  json.Small("attempts", report.attempts);
  json.Wide("evaluations", report.evaluations);
  json.Wide("checkpoints", report.checkpoints);
  json.Wide("skippedIterations", report.skipped_iterations);
  if (!report.notes.empty()) {
    json.OpenArray("notes");
    for (const std::string& note : report.notes) json.Text("", note);
    json.CloseArray();
  }
  json.OpenArray("oddities");
  for (std::size_t i = 0; i < report.oddities.size(); ++i) {
    const replay::OddityCount& entry = report.oddities[i];
    if (entry.count == 0) continue;
    const auto oddity = static_cast<replay::Oddity>(i);
    json.OpenObject();
    json.Text("oddity", replay::OddityName(oddity));
    json.Text("explanation", replay::OddityExplanation(oddity));
    json.Wide("count", entry.count);
    json.Wide("firstLine", entry.first_line);
    json.Wide("lastLine", entry.last_line);
    json.CloseObject();
  }
  json.CloseArray();
  json.CloseObject();
}

}  // namespace

void WriteReplay(const ReplayedRun& run, JsonWriter& json) {
  const replay::ReplayResult& result = run.result;
  json.OpenObject();
  json.Text("run", run.run);
  json.Wide("points", run.points);
  json.OpenArray("files");
  for (const ReplayedFile& file : run.files) WriteFile(file, json);
  json.CloseArray();
  json.Text("worst", state::ActionName(result.worst));
  json.OpenArray("incidents");
  for (const replay::IncidentLife& life : result.incidents) {
    v1::Incident message;
    api::ToMessage(life.incident, &message);
    json.OpenObject();
    json.Raw("incident", Inner(message));
    json.Text("worstSeverity", state::SeverityName(life.worst));
    WriteMoment("firstSaid", life.first, json);
    WriteMoment("warned", life.warned, json);
    WriteMoment("critical", life.critical, json);
    WriteMoment("resolved", life.resolved, json);
    json.CloseObject();
  }
  json.CloseArray();
  json.OpenArray("verdicts");
  for (const replay::VerdictChange& change : result.verdicts) {
    v1::Verdict message;
    api::ToMessage(run.run, change.verdict, kInstance, &message);
    json.OpenObject();
    WriteMoment("at", change.at, json);
    json.Raw("verdict", Inner(message));
    json.CloseObject();
  }
  json.CloseArray();
  json.Wide("incidentsLeftOut", result.incidents_left_out);
  json.Wide("verdictsLeftOut", result.verdicts_left_out);
  json.Wide("pointsLeftOut", result.points_left_out);
  json.CloseObject();
}

}  // namespace lossgauge::ctl
