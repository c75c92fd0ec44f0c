// Steps and layouts as messages. Absent stays absent: a value that was not measured never becomes 0.
#ifndef LOSSGAUGE_SERVER_API_CONVERT_STEP_H_
#define LOSSGAUGE_SERVER_API_CONVERT_STEP_H_

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <cstdint>

#include "lossgauge/v1/record.pb.h"
#include "server/state/joined_step.h"

namespace lossgauge::api {

void SetTimestamp(state::TimeNs time_ns, google::protobuf::Timestamp* message);
void SetDuration(std::int64_t duration_ns, google::protobuf::Duration* message);

// Each fills an empty message.
void ToMessage(const lg_layout& layout, v1::Layout* message);
void ToMessage(const state::StepSummary& step, bool include_ranks, v1::Step* message);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_CONVERT_STEP_H_
