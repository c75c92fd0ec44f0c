// Logs for people: lines of text, several grammars in one file. Each line is tried as a dictionary (Hugging Face and those who print one), as a
// line of Megatron-LM or DeepSpeed, and as plain names and numbers (nanoGPT, modded-nanogpt, llm.c, nanochat and many more).
#ifndef LOSSGAUGE_SERVER_REPLAY_TEXT_LOG_H_
#define LOSSGAUGE_SERVER_REPLAY_TEXT_LOG_H_

#include "server/replay/line_reader.h"
#include "server/replay/point_maker.h"

namespace lossgauge::replay {

inline constexpr std::string_view kShapeMegatron = "megatron";
inline constexpr std::string_view kShapeDictionary = "dictionary";
inline constexpr std::string_view kShapeKeyValues = "key_values";

void ReadTextLog(LineReader* lines, PointMaker* points, LogReport* report);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_TEXT_LOG_H_
