// TensorBoard event files: scalars of one step become one record.
#ifndef LOSSGAUGE_SERVER_REPLAY_EVENT_LOG_H_
#define LOSSGAUGE_SERVER_REPLAY_EVENT_LOG_H_

#include "server/replay/byte_source.h"
#include "server/replay/point_maker.h"

namespace lossgauge::replay {

inline constexpr std::string_view kShapeEvents = "tensorboard";

// Whether a file begins as an event file does, or is one with a damaged beginning.
bool IsEventFile(std::string_view head);

// A record whose checksum or message is broken is skipped and counted; where a length is broken, the next record is searched for. Lines are
// numbers of records. Memory is bounded: a record of more than 16 MiB (a graph, an image) is passed over.
void ReadEventFile(ByteSource* source, PointMaker* points, LogReport* report);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_EVENT_LOG_H_
