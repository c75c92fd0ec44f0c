// Series of one rank: its last step, its maxima, its producer.
#ifndef LOSSGAUGE_SERVER_EXPORT_RANK_SERIES_H_
#define LOSSGAUGE_SERVER_EXPORT_RANK_SERIES_H_

#include <string_view>

#include "server/export/family_builder.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

// Everything with the labels `run` and `rank`. `run_ended`: only counters are left.
void AddRankSeries(std::string_view run_label, const state::RankView& rank, bool run_ended, FamilyBuilder& page);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_RANK_SERIES_H_
