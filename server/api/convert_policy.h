// A policy as a message, and as the text of a policy file that gives the same one.
#ifndef LOSSGAUGE_SERVER_API_CONVERT_POLICY_H_
#define LOSSGAUGE_SERVER_API_CONVERT_POLICY_H_

#include <string>

#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/policy_view.h"

namespace lossgauge::api {

void ToMessage(const std::string& run, const state::PolicyView& policy, v1::Policy* message);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_CONVERT_POLICY_H_
