// Series about what goes from sidecars to daemons, on either side.
#ifndef LOSSGAUGE_SERVER_EXPORT_FORWARD_SERIES_H_
#define LOSSGAUGE_SERVER_EXPORT_FORWARD_SERIES_H_

#include "server/export/family_builder.h"
#include "server/state/snapshot.h"

namespace lossgauge::export_ {

// Nothing for a sidecar that forwards to nobody.
void AddForwardSeries(const state::SelfView& self, FamilyBuilder& page);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_FORWARD_SERIES_H_
