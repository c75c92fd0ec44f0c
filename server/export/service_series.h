// Series of what servers and senders count outside the drain thread.
#ifndef LOSSGAUGE_SERVER_EXPORT_SERVICE_SERIES_H_
#define LOSSGAUGE_SERVER_EXPORT_SERVICE_SERIES_H_

#include "server/export/family_builder.h"
#include "server/state/service_counters.h"

namespace lossgauge::export_ {

void AddServiceSeries(const state::ServiceCounters& counters, FamilyBuilder& page);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_SERVICE_SERIES_H_
