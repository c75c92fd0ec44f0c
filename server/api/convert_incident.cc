#include "server/api/convert_incident.h"

#include "server/api/convert_step.h"
#include "server/api/text.h"

namespace lossgauge::api {

void ToMessage(const state::Evidence& evidence, v1::Evidence* message) {
  message->set_name(ValidUtf8(evidence.name));
  message->set_value(evidence.value);
  message->set_unit(ValidUtf8(evidence.unit));
  message->set_text(ValidUtf8(evidence.text));
}

void ToMessage(const state::Incident& incident, v1::Incident* message) {
  message->set_id(ValidUtf8(incident.id));
  message->set_run(ValidUtf8(incident.run));
  message->set_attempt(ValidUtf8(incident.attempt));
  message->set_condition(std::string(state::ConditionName(incident.condition)));
  message->set_kind(ValidUtf8(incident.kind));
  message->set_severity(static_cast<v1::Severity>(incident.severity));
  message->set_open(incident.open);
  message->set_onset_step(incident.onset_step);
  message->set_peak_step(incident.peak_step);
  message->set_last_step(incident.last_step);
  if (incident.onset_time_ns != 0) SetTimestamp(incident.onset_time_ns, message->mutable_onset_time());
  if (incident.last_time_ns != 0) SetTimestamp(incident.last_time_ns, message->mutable_last_time());
  if (incident.resolved_time_ns != 0) SetTimestamp(incident.resolved_time_ns, message->mutable_resolved_time());
  message->set_summary(ValidUtf8(incident.summary));
  for (const state::Evidence& evidence : incident.evidence) ToMessage(evidence, message->add_evidence());
  if (incident.rank) message->set_rank(*incident.rank);
  if (incident.acknowledged) {
    message->set_acknowledged(true);
    message->set_acknowledged_by(ValidUtf8(incident.acknowledged->by));
    message->set_acknowledged_comment(ValidUtf8(incident.acknowledged->comment));
    SetTimestamp(incident.acknowledged->time_ns, message->mutable_acknowledged_time());
  }
  message->set_hidden_by(ValidUtf8(incident.hidden_by));
  if (incident.steps_to_recover) message->set_steps_to_recover(*incident.steps_to_recover);
}

static_assert(static_cast<int>(state::Severity::kInfo) == v1::INFO && static_cast<int>(state::Severity::kWarning) == v1::WARNING &&
              static_cast<int>(state::Severity::kCritical) == v1::CRITICAL);

}  // namespace lossgauge::api
