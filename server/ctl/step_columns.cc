#include "server/ctl/step_columns.h"

#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace lossgauge::ctl {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

bool IsTime(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field.message_type() == google::protobuf::Timestamp::descriptor();
}

void AddColumns(const Descriptor& message, const std::string& prefix, const std::vector<const FieldDescriptor*>& path, std::vector<Column>* columns) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.is_repeated()) continue;
    std::vector<const FieldDescriptor*> inner = path;
    inner.push_back(&field);
    const std::string name = prefix + field.name();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !IsTime(field)) {
      AddColumns(*field.message_type(), name + "_", inner, columns);
    } else {
      columns->push_back({name, std::move(inner)});
    }
  }
}

std::vector<Column> ColumnsOf(const Descriptor& message) {
  std::vector<Column> columns;
  AddColumns(message, "", {}, &columns);
  return columns;
}

}  // namespace

const std::vector<Column>& StepColumns() {
  static const auto& columns = *new std::vector<Column>(ColumnsOf(*v1::Step::descriptor()));
  return columns;
}

const std::vector<Column>& RankColumns() {
  static const auto& columns = *new std::vector<Column>(ColumnsOf(*v1::RankStep::descriptor()));
  return columns;
}

const std::vector<Column>& IdentityColumns() {
  static const auto& columns = *[] {
    auto* found = new std::vector<Column>;
    for (const Column& column : StepColumns()) {
      for (const char* name : {"sequence", "attempt", "step", "receive_time"}) {
        if (column.name == name) found->push_back(column);
      }
    }
    return found;
  }();
  return columns;
}

ColumnValue ValueOf(const google::protobuf::Message& message, const Column& column) {
  const google::protobuf::Message* at = &message;
  for (std::size_t i = 0; i < column.path.size(); ++i) {
    const FieldDescriptor* field = column.path[i];
    const auto& reflection = *at->GetReflection();
    if (field->has_presence() && !reflection.HasField(*at, field)) return {};
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        at = &reflection.GetMessage(*at, field);
        if (IsTime(*field)) {
          return std::string(google::protobuf::util::TimeUtil::ToString(static_cast<const google::protobuf::Timestamp&>(*at)));
        }
        break;
      case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(*at, field);
      case FieldDescriptor::CPPTYPE_INT32: return std::int64_t{reflection.GetInt32(*at, field)};
      case FieldDescriptor::CPPTYPE_INT64: return std::int64_t{reflection.GetInt64(*at, field)};
      case FieldDescriptor::CPPTYPE_UINT32: return std::uint64_t{reflection.GetUInt32(*at, field)};
      case FieldDescriptor::CPPTYPE_UINT64: {
        const std::uint64_t value = reflection.GetUInt64(*at, field);
        if (field->type() == FieldDescriptor::TYPE_FIXED64) return std::string(absl::StrCat(value));
        return value;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetDouble(*at, field);
      case FieldDescriptor::CPPTYPE_STRING: return std::string(reflection.GetString(*at, field));
      default: return {};
    }
  }
  return {};
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

const v1::RankStep* FindRank(const v1::Step& step, std::uint32_t rank) {
  for (const v1::RankStep& one : step.rank_steps()) {
    if (one.rank() == rank) return &one;
  }
  return nullptr;
}

}  // namespace lossgauge::ctl
