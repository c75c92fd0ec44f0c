#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "server/detect/policy.h"
#include "server/detect/policy_fields.h"

namespace lossgauge::detect {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto result = ParsePolicy(text, "p.yaml");
  return result.ok() ? "accepted" : std::string(result.status().message());
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Policy, TheShippedFileSaysExactlyTheDefaultsAndNamesEveryKey) {
  const auto file = LoadPolicy(LOSSGAUGE_POLICY_FILE);
  ASSERT_TRUE(file.ok()) << file.status();
  const Policy defaults = DefaultPolicies().defaults;
  EXPECT_EQ(file->defaults.version, defaults.version);
  for (const PolicyField& field : PolicyFields()) {
    EXPECT_EQ(file->defaults.*field.value, defaults.*field.value) << field.section << "." << field.key;
  }
  std::ifstream in(LOSSGAUGE_POLICY_FILE);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (const PolicyField& field : PolicyFields()) EXPECT_TRUE(Contains(text, "  " + std::string(field.key) + ":")) << field.key;
}

TEST(Policy, AnEmptyFileIsTheDefaults) { EXPECT_EQ(ParsePolicy("", "p")->defaults.version, DefaultPolicies().defaults.version); }

TEST(Policy, AChangedValueChangesTheVersionAndADeclaredOneStands) {
  const auto changed = ParsePolicy("loss: {floor_nats: 0.2}", "p");
  ASSERT_TRUE(changed.ok());
  EXPECT_EQ(changed->defaults.loss_floor_nats, 0.2);
  EXPECT_NE(changed->defaults.version, DefaultPolicies().defaults.version);
  EXPECT_EQ(ParsePolicy("version: night-7", "p")->defaults.version, "night-7");
}

TEST(Policy, ErrorsNameFileLineAndKey) {
  EXPECT_TRUE(Contains(ErrorOf("loss:\n  flor_nats: 1\n"), "p.yaml:2: unknown key 'loss.flor_nats'; known are deviations, floor_nats"));
  EXPECT_TRUE(Contains(ErrorOf("mode: advise\nlosss: {}\n"), "p.yaml:2: unknown key 'losss'"));
  EXPECT_TRUE(Contains(ErrorOf("loss:\n  floor_nats: 0.2\n  floor_nats: 0.3\n"), "p.yaml:3: key 'floor_nats' appears twice"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {}\nloss: {}\n"), "p.yaml:2: key 'loss' appears twice"));
  EXPECT_TRUE(Contains(ErrorOf("time:\n  fresh_seconds: 60s\n"), "p.yaml:2: 'time.fresh_seconds' must be a plain number without a unit"));
  EXPECT_TRUE(Contains(ErrorOf("time: {fresh_minutes: 1}"), "unknown key 'time.fresh_minutes'"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {floor_nats: 1000}"), "'loss.floor_nats' must lie between 0.001 and 10, not 1000"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {floor_nats: -1}"), "must lie between"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {floor_nats: nan}"), "must lie between"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {close_steps: 2.5}"), "must be a whole number"));
  EXPECT_TRUE(Contains(ErrorOf("loss: [1, 2]"), "must be a mapping"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {floor_nats: {}}"), "must be a number"));
  EXPECT_TRUE(Contains(ErrorOf("mode: perhaps"), "'mode' must be advise or shadow"));
  EXPECT_TRUE(Contains(ErrorOf("- 1\n- 2\n"), "must be a mapping"));
  EXPECT_TRUE(Contains(ErrorOf("loss: {floor_nats: 1"), "p.yaml:"));
}

TEST(Policy, ThresholdsThatContradictEachOtherAreRefused) {
  EXPECT_TRUE(Contains(ErrorOf("integrity: {halt_steps: 6}"), "could never be reached"));
  EXPECT_TRUE(Contains(ErrorOf("time: {stall_restart_seconds: 30}"), "smaller than time.fresh_seconds"));
}

TEST(Policy, ARunOverridesWhatItNamesAndNothingElse) {
  const auto set = ParsePolicy("loss: {floor_nats: 0.2}\nruns:\n  debug:\n    mode: shadow\n    loss: {deviations: 9}\n", "p");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->For("debug").loss_deviations, 9);
  EXPECT_EQ(set->For("debug").loss_floor_nats, 0.2);
  EXPECT_TRUE(set->For("debug").shadow());
  EXPECT_EQ(set->For("other").loss_deviations, 6);
  EXPECT_NE(set->For("debug").version, set->For("other").version);
  EXPECT_TRUE(Contains(ErrorOf("runs:\n  a: {runs: {}}\n"), "unknown key 'runs'"));
  EXPECT_TRUE(Contains(ErrorOf("runs:\n  a: {}\n  a: {}\n"), "p.yaml:3: key 'a' appears twice"));
}

TEST(Policy, HostileTextIsAnErrorAndNoCrash) {
  EXPECT_NE(ErrorOf(std::string(100000, '[')), "accepted");
  std::string dashes;
  for (int i = 0; i < 50000; ++i) dashes += "- ";
  EXPECT_NE(ErrorOf(dashes), "accepted");
  EXPECT_NE(ErrorOf(std::string(3 << 20, 'a')), "accepted");
  EXPECT_NE(ErrorOf("a: &x [*x, *x]"), "accepted");
  EXPECT_TRUE(Contains(ErrorOf(std::string("\xff\xfe\0", 3)), "not UTF-8 text: byte 255 at offset 0"));
  EXPECT_TRUE(Contains(ErrorOf(std::string("mode: advise\n\0", 14)), "byte 0 at offset 13"));
}

// What stands behind a '---' would else be passed over without a word.
TEST(Policy, ASecondDocumentIsRefused) {
  EXPECT_TRUE(Contains(ErrorOf("loss: {close_steps: 30}\n---\nloss: {close_steps: 20}\n"), "a policy is one YAML document, and here are 2"));
  EXPECT_EQ(ErrorOf("---\nloss: {close_steps: 30}\n"), "accepted");
}

TEST(Policy, AFileThatIsNotThereIsNamed) {
  const auto result = LoadPolicy("/nonexistent/policy.yaml");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Contains(std::string(result.status().message()), "/nonexistent/policy.yaml"));
}

}  // namespace
}  // namespace lossgauge::detect
