#include "server/export/family_builder.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace lossgauge::export_ {
namespace {

using LabelNames = std::vector<std::string>;

LabelNames SplitLabels(std::string_view labels) {
  LabelNames names;
  while (!labels.empty()) {
    const std::size_t comma = labels.find(',');
    names.emplace_back(labels.substr(0, comma));
    labels = comma == std::string_view::npos ? std::string_view() : labels.substr(comma + 1);
  }
  return names;
}

const LabelNames& NamesOf(Metric metric) {
  static const std::array<LabelNames, kMetricCount> all = [] {
    std::array<LabelNames, kMetricCount> names;
    for (std::size_t i = 0; i < kMetricCount; ++i) names[i] = SplitLabels(Spec(static_cast<Metric>(i)).labels);
    return names;
  }();
  return all[static_cast<std::size_t>(metric)];
}

}  // namespace

FamilyBuilder::FamilyBuilder() : families_(kMetricCount) {}

void FamilyBuilder::Add(Metric metric, std::initializer_list<std::string_view> label_values, double value) {
  if (!std::isfinite(value)) return;
  prometheus::ClientMetric series;
  const LabelNames& names = NamesOf(metric);
  series.label.reserve(names.size());
  std::size_t i = 0;
  for (const std::string_view text : label_values) series.label.push_back({names.at(i++), std::string(text)});
  if (Spec(metric).kind == MetricKind::kCounter) {
    series.counter.value = value;
  } else {
    series.gauge.value = value;
  }
  families_[static_cast<std::size_t>(metric)].metric.push_back(std::move(series));
}

void FamilyBuilder::Add(Metric metric, std::initializer_list<std::string_view> label_values, const std::optional<double>& value) {
  if (value) Add(metric, label_values, *value);
}

std::vector<prometheus::MetricFamily> FamilyBuilder::Take() {
  std::vector<prometheus::MetricFamily> page;
  for (std::size_t i = 0; i < families_.size(); ++i) {
    prometheus::MetricFamily& family = families_[i];
    if (family.metric.empty()) continue;
    const MetricSpec& spec = Spec(static_cast<Metric>(i));
    family.name = spec.name;
    family.help = spec.help;
    family.type = spec.kind == MetricKind::kCounter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    page.push_back(std::move(family));
  }
  families_.assign(kMetricCount, {});
  return page;
}

}  // namespace lossgauge::export_
