// A log's point as the record that a gauge would have published.
#ifndef LOSSGAUGE_SERVER_REPLAY_STEP_RECORD_H_
#define LOSSGAUGE_SERVER_REPLAY_STEP_RECORD_H_

#include "proto/lossgauge/ring/ring_abi.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

// Sequence, times, totals and checksum are left 0. A log that gives no numbers of tokens gives a mean over them: it stands as the loss of one
// token. A loss that is not finite becomes rows that are not.
lg_step_record MakeStepRecord(const LogPoint& point);

// Adds the record to the totals of the one before it and writes them into it.
void AddToTotals(const lg_step_record& before, lg_step_record* record);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_STEP_RECORD_H_
