#include "server/state/byte_codec.h"
#include "server/state/history_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::uint64_t kIncidentVersion = 1;
constexpr std::uint64_t kVerdictVersion = 1;

void PutEvidence(ByteWriter& out, const std::vector<Evidence>& evidence) {
  out.U64(evidence.size());
  for (const auto& item : evidence) {
    out.String(item.name);
    out.F64(item.value);
    out.String(item.unit);
    out.String(item.text);
  }
}

std::vector<Evidence> GetEvidence(ByteReader& in) {
  std::vector<Evidence> evidence(in.Count());
  for (auto& item : evidence) {
    item.name = in.String();
    item.value = in.F64();
    item.unit = in.String();
    item.text = in.String();
  }
  return evidence;
}

template <typename T>
void PutOptionalInt(ByteWriter& out, const std::optional<T>& value) {
  out.Bool(value.has_value());
  if (value) out.I64(static_cast<std::int64_t>(*value));
}

template <typename T>
void GetOptionalInt(ByteReader& in, std::optional<T>& value) {
  if (in.Bool()) value = static_cast<T>(in.I64());
}

}  // namespace

std::string EncodeIncident(const Incident& incident) {
  ByteWriter out;
  out.U64(kIncidentVersion);
  out.String(incident.id);
  out.String(incident.run);
  out.String(incident.attempt);
  out.String(ConditionName(incident.condition));
  out.String(incident.kind);
  out.U64(static_cast<std::uint64_t>(incident.severity));
  out.Bool(incident.open);
  for (const auto step : {incident.onset_step, incident.peak_step, incident.last_step}) out.I64(step);
  for (const auto time : {incident.onset_time_ns, incident.last_time_ns, incident.resolved_time_ns}) out.I64(time);
  out.String(incident.summary);
  PutEvidence(out, incident.evidence);
  PutOptionalInt(out, incident.rank);
  out.Bool(incident.acknowledged.has_value());
  if (incident.acknowledged) {
    out.String(incident.acknowledged->by);
    out.String(incident.acknowledged->comment);
    out.I64(incident.acknowledged->time_ns);
  }
  out.String(incident.hidden_by);
  PutOptionalInt(out, incident.steps_to_recover);
  return out.Take();
}

std::optional<Incident> DecodeIncident(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.U64() != kIncidentVersion) return std::nullopt;
  Incident incident;
  incident.id = in.String();
  incident.run = in.String();
  incident.attempt = in.String();
  const auto condition = ConditionFromName(in.String());
  if (!condition) return std::nullopt;
  incident.condition = *condition;
  incident.kind = in.String();
  const std::uint64_t severity = in.U64();
  if (severity < 1 || severity > 3) return std::nullopt;
  incident.severity = static_cast<Severity>(severity);
  incident.open = in.Bool();
  for (auto* step : {&incident.onset_step, &incident.peak_step, &incident.last_step}) *step = in.I64();
  for (auto* time : {&incident.onset_time_ns, &incident.last_time_ns, &incident.resolved_time_ns}) *time = in.I64();
  incident.summary = in.String();
  incident.evidence = GetEvidence(in);
  GetOptionalInt(in, incident.rank);
  if (in.Bool()) {
    Acknowledgement& acknowledged = incident.acknowledged.emplace();
    acknowledged.by = in.String();
    acknowledged.comment = in.String();
    acknowledged.time_ns = in.I64();
  }
  incident.hidden_by = in.String();
  GetOptionalInt(in, incident.steps_to_recover);
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return incident;
}

std::string EncodeVerdict(const Verdict& verdict) {
  ByteWriter out;
  out.U64(kVerdictVersion);
  out.U64(static_cast<std::uint64_t>(verdict.action));
  out.String(verdict.reason);
  out.U64(verdict.reason_codes.size());
  for (const auto& code : verdict.reason_codes) out.String(code);
  PutEvidence(out, verdict.evidence);
  out.String(verdict.policy_version);
  out.I64(verdict.evaluated_at_ns);
  out.I64(verdict.valid_until_ns);
  out.String(verdict.attempt);
  PutOptionalInt(out, verdict.last_step);
  PutOptionalInt(out, verdict.last_step_age_ns);
  PutOptionalInt(out, verdict.last_good_step);
  out.Bool(verdict.resume_point.has_value());
  if (verdict.resume_point) {
    out.I64(verdict.resume_point->step);
    out.String(verdict.resume_point->path);
  }
  out.Bool(verdict.skip.has_value());
  if (verdict.skip) {
    out.I64(verdict.skip->first);
    out.I64(verdict.skip->last);
  }
  PutOptionalInt(out, verdict.rank_at_fault);
  out.String(verdict.escalates);
  PutOptionalInt(out, verdict.since_ns);
  out.String(verdict.scope);
  out.String(verdict.mode);
  return out.Take();
}

std::optional<Verdict> DecodeVerdict(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.U64() != kVerdictVersion) return std::nullopt;
  Verdict verdict;
  const std::uint64_t action = in.U64();
  if (action < 1 || action > 5) return std::nullopt;
  verdict.action = static_cast<Action>(action);
  verdict.reason = in.String();
  verdict.reason_codes.resize(in.Count());
  for (auto& code : verdict.reason_codes) code = in.String();
  verdict.evidence = GetEvidence(in);
  verdict.policy_version = in.String();
  verdict.evaluated_at_ns = in.I64();
  verdict.valid_until_ns = in.I64();
  verdict.attempt = in.String();
  GetOptionalInt(in, verdict.last_step);
  GetOptionalInt(in, verdict.last_step_age_ns);
  GetOptionalInt(in, verdict.last_good_step);
  if (in.Bool()) {
    ResumePoint& point = verdict.resume_point.emplace();
    point.step = in.I64();
    point.path = in.String();
  }
  if (in.Bool()) {
    StepSpan& span = verdict.skip.emplace();
    span.first = in.I64();
    span.last = in.I64();
  }
  GetOptionalInt(in, verdict.rank_at_fault);
  verdict.escalates = in.String();
  GetOptionalInt(in, verdict.since_ns);
  verdict.scope = in.String();
  verdict.mode = in.String();
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return verdict;
}

}  // namespace lossgauge::state
