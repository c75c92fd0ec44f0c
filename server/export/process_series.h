// What the kernel knows of this process, under the names that every Prometheus client uses.
#ifndef LOSSGAUGE_SERVER_EXPORT_PROCESS_SERIES_H_
#define LOSSGAUGE_SERVER_EXPORT_PROCESS_SERIES_H_

#include <string>

#include "server/export/family_builder.h"

namespace lossgauge::export_ {

// `proc_self` is /proc/self, or a fixture. What cannot be read there is left off.
void AddProcessSeries(const std::string& proc_self, FamilyBuilder& page);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_PROCESS_SERIES_H_
