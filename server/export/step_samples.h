// A step as samples: the series that remote write and OTLP send, each step at its own time.
//
// The names differ from those of /metrics: a scraped series and a sent one under the same name would be out of order with one another.
#ifndef LOSSGAUGE_SERVER_EXPORT_STEP_SAMPLES_H_
#define LOSSGAUGE_SERVER_EXPORT_STEP_SAMPLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/state/joined_step.h"

namespace lossgauge::export_ {

struct StepSeries {
  const char* name;
  const char* unit;
  const char* help;
  std::optional<double> (*value)(const state::StepSummary& step);
};

// The order is that of the table in dashboards/METRICS.md.
std::span<const StepSeries> AllStepSeries();

// A step and when it happened. Timestamps of a run rise strictly.
struct TimedStep {
  std::shared_ptr<const state::StepSummary> step;
  std::int64_t timestamp_ms = 0;  // since the epoch
};

// The table as Markdown, after a heading of its own.
std::string StepSeriesMarkdown();

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_STEP_SAMPLES_H_
