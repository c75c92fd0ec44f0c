// Values of messages as a person reads them.
#ifndef LOSSGAUGE_SERVER_CTL_VALUES_H_
#define LOSSGAUGE_SERVER_CTL_VALUES_H_

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "lossgauge/v1/lossgauge.pb.h"
#include "server/api/convert_verdict.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {

// Four significant digits; "NaN", "+inf", "-inf" as such.
std::string Significant(double value);
// "-" for what was not measured.
template <class Message>
std::string Optional(const Message& message, bool (Message::*has)() const, double (Message::*get)() const) {
  return (message.*has)() ? Significant((message.*get)()) : "-";
}

absl::Time ToTime(const google::protobuf::Timestamp& timestamp);
absl::Duration ToDuration(const google::protobuf::Duration& duration);
// "2026-11-29 19:34:51 UTC"
std::string Clock(absl::Time time);
// "3.2 s", "14 min", "2.1 h"
std::string Span(absl::Duration duration);

using api::ActionName;
Tone ToneOf(v1::Action action);
std::string SeverityName(v1::Severity severity);  // "critical"
Tone ToneOf(v1::Severity severity);
// "loss_spike/logit_blowup"
std::string ConditionName(const v1::Incident& incident);
std::string EvidenceText(const v1::Evidence& evidence);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_VALUES_H_
