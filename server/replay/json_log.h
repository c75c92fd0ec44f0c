// JSON logs: one object a line, and whole documents (Hugging Face's trainer_state.json, arrays of objects, golden values of Megatron's tests).
#ifndef LOSSGAUGE_SERVER_REPLAY_JSON_LOG_H_
#define LOSSGAUGE_SERVER_REPLAY_JSON_LOG_H_

#include "server/replay/line_reader.h"
#include "server/replay/point_maker.h"

namespace lossgauge::replay {

inline constexpr std::string_view kShapeJsonLines = "jsonl";
inline constexpr std::string_view kShapeJsonEntry = "json_entry";
inline constexpr std::string_view kShapeGolden = "golden_values";

void ReadJsonLines(LineReader* lines, PointMaker* points, LogReport* report);

// Streams: memory does not grow with the document. Behind an error reading goes on at the next object; each error is counted. Several documents in
// one file are read one after the other. Sets report->format.
void ReadJsonDocument(ByteSource* source, PointMaker* points, LogReport* report);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_JSON_LOG_H_
