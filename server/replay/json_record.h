// One JSON object as a record: RapidJSON's reader, with NaN and Infinity allowed bare. Values of nested objects are named by their path.
#ifndef LOSSGAUGE_SERVER_REPLAY_JSON_RECORD_H_
#define LOSSGAUGE_SERVER_REPLAY_JSON_RECORD_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "server/replay/log_record.h"

namespace lossgauge::replay {

enum class JsonOutcome { kRecord, kNotAnObject, kBroken };

// `text` is one line. kBroken: cut off or no JSON; nothing of it may be used, because its last number may lack digits.
JsonOutcome ParseJsonRecord(std::string_view text, LogRecord* record);

// A Python dictionary as JSON: quotes, True, None, nan. Returns how many bytes of `text` it is; 0 if `text` does not begin with
// one that ends in it.
std::size_t PythonToJson(std::string_view text, std::string* json);

// Gives the record a value that came as text: a number, with commas or without, a phase ("split": "val"), an attempt.
void AddTextValue(std::string_view name, std::string_view text, LogRecord* record);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_JSON_RECORD_H_
