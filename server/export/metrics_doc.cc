// Prints dashboards/METRICS.md: lossgauge_metrics_doc > dashboards/METRICS.md
// With --names: the names alone, one a line with its type, for checks of rules and dashboards.
#include <cstdio>
#include <cstring>

#include "server/export/catalogue.h"
#include "server/export/step_samples.h"

int main(int argc, char** argv) {
  using namespace lossgauge::export_;
  if (argc == 1) {
    std::fputs(CatalogueMarkdown().c_str(), stdout);
    return 0;
  }
  if (argc == 2 && std::strcmp(argv[1], "--names") == 0) {
    for (std::size_t i = 0; i < kMetricCount; ++i) {
      const MetricSpec& spec = Spec(static_cast<Metric>(i));
      std::printf("%s %s %s\n", spec.name, spec.kind == MetricKind::kCounter ? "counter" : "gauge", spec.labels[0] ? spec.labels : "-");
    }
    for (const StepSeries& series : AllStepSeries()) std::printf("%s gauge run\n", series.name);
    return 0;
  }
  std::fprintf(stderr, "usage: lossgauge_metrics_doc [--names]\n");
  return 2;
}
