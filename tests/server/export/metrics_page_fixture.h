// A page over a snapshot, with a clock that stands still.
#ifndef LOSSGAUGE_TESTS_SERVER_EXPORT_METRICS_PAGE_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_EXPORT_METRICS_PAGE_FIXTURE_H_

#include <cstdint>

#include "server/export/metrics_page.h"
#include "tests/server/export/page_reader.h"
#include "tests/server/export/snapshot_fixture.h"

namespace lossgauge::export_ {

inline MetricsPageOptions Options() {
  MetricsPageOptions options;
  options.proc_self = LOSSGAUGE_PROC_FIXTURE;
  options.monotonic_ns = [] { return std::int64_t{0}; };
  options.now_ns = [] { return kNow; };
  return options;
}

inline PageReader Render(const state::Snapshot& snapshot) { return PageReader(MetricsPage(Options()).Render(snapshot)); }

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_TESTS_SERVER_EXPORT_METRICS_PAGE_FIXTURE_H_
