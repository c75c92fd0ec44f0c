#include "server/export/catalogue.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace lossgauge::export_ {
namespace {

const std::set<std::string> kAllowedLabels = {"daemon", "run",  "rank", "reason", "action",   "condition", "severity", "cause",    "kind",
                                              "mode", "phase", "state",  "version", "revision",  "compiler", "gradient_reduction", "tensor_group", "shard",
                                              "protocol", "sink", "result"};

template <typename Check>
void ForEachRow(Check check) {
  for (std::size_t i = 0; i < kMetricCount; ++i) {
    const MetricSpec& spec = Spec(static_cast<Metric>(i));
    SCOPED_TRACE(spec.name);
    check(spec);
  }
}

TEST(Catalogue, NamesEachMetricOnce) {
  std::set<std::string> names;
  ForEachRow([&](const MetricSpec& spec) { EXPECT_TRUE(names.insert(spec.name).second); });
}

TEST(Catalogue, PutsTotalOnCountersAndOnNothingElse) {
  ForEachRow([](const MetricSpec& spec) {
    const std::string_view name = spec.name;
    const bool total = name.size() > 6 && name.substr(name.size() - 6) == "_total";
    EXPECT_EQ(total, spec.kind == MetricKind::kCounter);
  });
}

TEST(Catalogue, PrefixesEveryNameAndSpeaksOfTimestampsNotAges) {
  ForEachRow([](const MetricSpec& spec) {
    const std::string name = spec.name;
    EXPECT_TRUE(name.rfind("lossgauge_", 0) == 0 || name.rfind("process_", 0) == 0);
    EXPECT_EQ(name.find("_age"), std::string::npos);
    EXPECT_EQ(name.find("_ms"), std::string::npos);
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos);
  });
}

TEST(Catalogue, HelpNeedsNoEscaping) {
  ForEachRow([](const MetricSpec& spec) {
    const std::string help = spec.help;
    EXPECT_FALSE(help.empty());
    EXPECT_EQ(help.find_first_of("\\\n\r\"|"), std::string::npos);
    EXPECT_EQ(help.back(), '.');
  });
}

TEST(Catalogue, UsesOnlyLabelsOfClosedSetsBesideRunAndRank) {
  ForEachRow([](const MetricSpec& spec) {
    std::stringstream labels(spec.labels);
    for (std::string label; std::getline(labels, label, ',');) EXPECT_TRUE(kAllowedLabels.count(label)) << label;
  });
}

TEST(Catalogue, IsWhatTheDocumentationSays) {
  std::ifstream file(LOSSGAUGE_METRICS_MD);
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(CatalogueMarkdown(), committed.str()) << "run: lossgauge_metrics_doc > dashboards/METRICS.md";
}

}  // namespace
}  // namespace lossgauge::export_
