// The counters that a rank and its run have in common.
#ifndef LOSSGAUGE_SERVER_EXPORT_COUNTER_SERIES_H_
#define LOSSGAUGE_SERVER_EXPORT_COUNTER_SERIES_H_

#include <string_view>

#include "server/export/family_builder.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

// lossgauge_X_total{run,rank}. A rank without a loss (`has_loss` false) has no series of sums over tokens.
void AddRankCounters(std::string_view run, std::string_view rank, bool has_loss, const state::RankTotals& totals, FamilyBuilder& page);

// lossgauge_run_X_total{run}.
void AddRunCounters(std::string_view run, const state::RankTotals& totals, FamilyBuilder& page);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_COUNTER_SERIES_H_
