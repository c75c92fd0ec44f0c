// Series of a whole run: verdict, incidents, what it declared, and its last joined step.
#ifndef LOSSGAUGE_SERVER_EXPORT_RUN_SERIES_H_
#define LOSSGAUGE_SERVER_EXPORT_RUN_SERIES_H_

#include <string_view>

#include "server/export/family_builder.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

// Everything with the label `run` and no rank. `run_label` is the clean name, unique on the page. A verdict past its term at `now_ns` is
// UNKNOWN here as it is everywhere else.
void AddRunSeries(std::string_view run_label, const state::RunSnapshot& run, state::TimeNs now_ns, FamilyBuilder& page);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_RUN_SERIES_H_
