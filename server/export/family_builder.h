// Collects the series of one page, family by family, in the order of the catalogue.
#ifndef LOSSGAUGE_SERVER_EXPORT_FAMILY_BUILDER_H_
#define LOSSGAUGE_SERVER_EXPORT_FAMILY_BUILDER_H_

#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "prometheus/metric_family.h"
#include "server/export/catalogue.h"

namespace lossgauge::export_ {

// Not thread-safe. One builder makes one page.
class FamilyBuilder {
 public:
  FamilyBuilder();

  // One series. `label_values` in the order of the catalogue's labels, already clean. A value that is not finite is no measurement: the
  // series is left off.
  void Add(Metric metric, std::initializer_list<std::string_view> label_values, double value);
  void Add(Metric metric, std::initializer_list<std::string_view> label_values, const std::optional<double>& value);

  // The families that have series. The builder is empty afterwards.
  std::vector<prometheus::MetricFamily> Take();

 private:
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_FAMILY_BUILDER_H_
