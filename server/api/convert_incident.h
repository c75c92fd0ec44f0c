// Incidents and their evidence as messages.
#ifndef LOSSGAUGE_SERVER_API_CONVERT_INCIDENT_H_
#define LOSSGAUGE_SERVER_API_CONVERT_INCIDENT_H_

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/incident.h"

namespace lossgauge::api {

// Each fills an empty message.
void ToMessage(const state::Evidence& evidence, v1::Evidence* message);
void ToMessage(const state::Incident& incident, v1::Incident* message);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_CONVERT_INCIDENT_H_
