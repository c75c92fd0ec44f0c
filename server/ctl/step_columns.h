// The values of an exported step one after the other, found by reflection: a field that lossgauge.v1 gains is exported without a word here.
#ifndef LOSSGAUGE_SERVER_CTL_STEP_COLUMNS_H_
#define LOSSGAUGE_SERVER_CTL_STEP_COLUMNS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <variant>
#include <vector>

#include "lossgauge/v1/record.pb.h"

namespace lossgauge::ctl {

struct Column {
  std::string name;  // "loss_nats", "worst_row_position"
  std::vector<const google::protobuf::FieldDescriptor*> path;  // from the message to the value
};

// std::monostate: absent. Text: names and times. Fingerprints are text in decimal digits.
using ColumnValue = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string>;

// Of each step: numbers, flags, places, times, and what a row of thinned steps stands for, but not its ranges.
const std::vector<Column>& StepColumns();
// Of a rank's own values: "rank", "loss_nats", ...
const std::vector<Column>& RankColumns();
// What says which step it is: "sequence", "attempt", "step", "receive_time". Columns of a step, too.
const std::vector<Column>& IdentityColumns();

ColumnValue ValueOf(const google::protobuf::Message& message, const Column& column);
// Shortest text that reads back as the same number; "NaN", "Infinity", "-Infinity".
std::string NumberText(double value);

// The rank's own values of a step; null if it has none.
const v1::RankStep* FindRank(const v1::Step& step, std::uint32_t rank);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_STEP_COLUMNS_H_
