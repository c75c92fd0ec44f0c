#include "server/export/label_text.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>

#include "server/export/metrics_page.h"
#include "tests/server/export/snapshot_fixture.h"

namespace lossgauge::export_ {
namespace {

constexpr const char* kRepaired = "\xEF\xBF\xBD";

TEST(LabelText, LeavesGoodNamesAlone) {
  for (const char* name : {"a", "gpt 7b", "a\"b", "a\\b", "a\nb", "{", "größe", "\xF0\x9F\x93\x89"}) EXPECT_EQ(LabelText(name), name);
  EXPECT_EQ(LabelText(std::string(kMaxLabelBytes, 'x')), std::string(kMaxLabelBytes, 'x'));
}

TEST(LabelText, ReplacesWhatIsNotUtf8AndKeepsTwoBrokenNamesApart) {
  for (const char* broken : {"\xFF", "a\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    const std::string label = LabelText(broken);
    EXPECT_NE(label.find(kRepaired), std::string::npos);
    EXPECT_EQ(label[label.size() - 9], '~');
  }
  EXPECT_NE(LabelText("a\xFF"), LabelText("a\xFE"));
  EXPECT_EQ(LabelText("a\xFF"), LabelText("a\xFF"));
}

TEST(LabelText, CutsLongNamesWithAHashAndNeverInsideACharacter) {
  for (std::size_t length = kMaxLabelBytes + 1; length < kMaxLabelBytes + 8; ++length) {
    std::string name(length % 4, 'a');
    while (name.size() < length) name += "\xF0\x9F\x93\x89";
    const std::string label = LabelText(name);
    EXPECT_LE(label.size(), kMaxLabelBytes);
    EXPECT_EQ(label.find(kRepaired), std::string::npos);
    EXPECT_EQ(label[label.size() - 9], '~');
  }
  EXPECT_LE(LabelText(std::string(4096, '\xFF')).size(), kMaxLabelBytes);
  EXPECT_NE(LabelText(std::string(4096, 'a')), LabelText(std::string(4097, 'a')));
}

TEST(LabelText, NamesTheUnnamed) { EXPECT_EQ(LabelText(""), "(unnamed)"); }

// The judge of all this is Prometheus' own parser.
TEST(LabelText, MakesAPageThatPromtoolAcceptsForEveryOddName) {
  if (std::string(LOSSGAUGE_PROMTOOL).empty()) GTEST_SKIP() << "promtool was not found";
  const std::array<std::string, 14> odd = {
      "a\"b", "a\\b", "a\nb", "a\rb", "", std::string(4096, 'n'), "\xF0\x9F\x93\x89", "\xFF\xFE\xC3(", "{", "trailing\\", "}\" 1\n# TYPE x counter",
      std::string("nul\0nul", 7), "\t", "\xE2\x80\xA8"};
  std::vector<std::shared_ptr<const state::RunSnapshot>> runs;
  for (const std::string& name : odd) {
    auto run = RunOf(name, 1);
    run->verdict.reason_codes = {name};
    run->incident_counters.incidents = {{state::Condition::kLossSpike, name, 1}};
    run->mode = name;
    run->phase = name;
    runs.push_back(run);
  }
  const std::string path = ::testing::TempDir() + "/odd_names.metrics";
  MetricsPageOptions options;
  options.now_ns = [] { return kNow; };  // within the verdicts' term: their reasons are on the page
  std::ofstream(path) << MetricsPage(options).Render(Shot(runs));
  const std::string command = std::string(LOSSGAUGE_PROMTOOL) + " check metrics < '" + path + "' 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 512> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) {
    // promtool's style check takes the quantity "bits per byte" for a size in bits. It is not one.
    if (std::string(buffer.data()).find("_bits_per_byte use base unit") == std::string::npos) output += buffer.data();
  }
  EXPECT_EQ(output, "");  // promtool says nothing when it finds nothing
}

}  // namespace
}  // namespace lossgauge::export_
