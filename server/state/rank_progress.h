// Counters from the producers' own cumulative totals: right across gaps, restarts of either side and records read twice.
#ifndef LOSSGAUGE_SERVER_STATE_RANK_PROGRESS_H_
#define LOSSGAUGE_SERVER_STATE_RANK_PROGRESS_H_

#include "server/state/byte_codec.h"
#include "server/state/snapshot.h"

namespace lossgauge::state {

// What `record` adds beyond `seen`, the totals of the same segment and block applied before; `seen` moves on. A record that is not ahead
// of `seen` (read again after a restart, or out of order) adds nothing; a count that falls (no producer of ours does that) adds nothing.
RankTotals TakeProgress(const lg_step_record& record, RankTotals* seen);

void AddTotals(const RankTotals& delta, RankTotals* sum);

void WriteTotals(const RankTotals& totals, ByteWriter* writer);
// `loss_reasons`: how many of them the version had that wrote it.
RankTotals ReadTotals(ByteReader* reader, std::size_t loss_reasons = static_cast<std::size_t>(LossReason::kCount));

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_RANK_PROGRESS_H_
