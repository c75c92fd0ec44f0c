#include "server/replay/log_record.h"

#include <utility>

namespace lossgauge::replay {

void LogRecord::Add(std::string_view raw_name, double value, std::string_view unit, std::optional<std::uint64_t> exact) {
  if (fields.size() >= kMaxFields || raw_name.size() > 200) return;
  LogField field;
  field.name = NormalName(raw_name);
  field.known = LookUpName(field.name);
  if (field.known.meaning == Meaning::kNone) return;
  field.value = value;
  field.exact = exact;
  if (field.known.meaning == Meaning::kStepSeconds) {
    if (unit == "ms" || (unit.empty() && UnitInName(raw_name) == "ms")) field.value *= 1e-3;
  }
  fields.push_back(std::move(field));
}

const LogField* LogRecord::Best(Meaning meaning) const {
  const LogField* best = nullptr;
  for (const LogField& field : fields) {
    if (field.known.meaning == meaning && (best == nullptr || field.known.rank < best->known.rank)) best = &field;
  }
  return best;
}

const LogField* LogRecord::Named(std::string_view normal_name) const {
  for (const LogField& field : fields) {
    if (field.name == normal_name) return &field;
  }
  return nullptr;
}

}  // namespace lossgauge::replay
