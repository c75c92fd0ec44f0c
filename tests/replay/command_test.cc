// `lossgaugectl replay` as it is typed.
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/scratch_directory.h"
#include "tests/server/ctl/session.h"
#include "tests/server/fake_producer.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;

std::string Fixture(const std::string& name) { return std::string(LOSSGAUGE_REPLAY_FIXTURES) + "/" + name; }

TEST(ReplayCommand, SaysWhatWasReadAndTheVerdictsOverIt) {
  Session session;
  ASSERT_EQ(session.Run({"replay", Fixture("restarts.log")}), 0) << session.err;
  for (const char* text : {"16 points", "3 attempts", "step 1 of attempt 1", "UNKNOWN  Baseline warming", "No incidents", "Worst verdict: UNKNOWN"}) {
    EXPECT_THAT(session.out, HasSubstr(text));
  }
  ASSERT_EQ(session.Run({"replay", Fixture("decimal_comma.csv")}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("15 x a comma as decimal point; read as one (lines 2 to 10)"));
}

TEST(ReplayCommand, NanIsARestartWithItsIncident) {
  const ScratchDirectory directory;
  const std::string path = directory.path() + "/nan.log";
  std::ofstream log(path);
  for (int i = 1; i <= 60; ++i) log << "step:" << i << " loss:" << (i < 45 ? "3.1" : "nan") << "\n";
  log.close();
  Session session;
  ASSERT_EQ(session.Run({"replay", path}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("critical  nonfinite  step 45 to 60"));
  EXPECT_THAT(session.out, HasSubstr("Worst verdict: RESTART"));
  EXPECT_LE(LongestLine(session.out), 80u + path.size());

  ASSERT_EQ(session.Run({"replay", path, "--json"}), 0);
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(session.out, &json).ok()) << session.out;
  const auto& run = json.fields().at("runs").list_value().values(0).struct_value().fields();
  EXPECT_EQ(run.at("run").string_value(), "nan.log");
  EXPECT_EQ(run.at("worst").string_value(), "RESTART");
  EXPECT_EQ(run.at("points").string_value(), "60");
  const auto& incident = run.at("incidents").list_value().values(0).struct_value().fields();
  EXPECT_EQ(incident.at("incident").struct_value().fields().at("condition").string_value(), "nonfinite");
  EXPECT_EQ(incident.at("firstSaid").struct_value().fields().at("step").string_value(), "45");
  EXPECT_EQ(incident.at("firstSaid").struct_value().fields().at("line").string_value(), "45");
  EXPECT_EQ(run.at("verdicts").list_value().values(0).struct_value().fields().at("verdict").struct_value().fields().at("action").string_value(), "UNKNOWN");
}

TEST(ReplayCommand, FilesAreRunsOfTheirOwnUnlessTheyAreNamedAsOne) {
  Session session;
  ASSERT_EQ(session.Run({"replay", Fixture("llmc_main.log"), Fixture("modded_nanogpt.log"), "--json"}), 0);
  EXPECT_THAT(session.out, HasSubstr("\"run\": \"modded_nanogpt.log\""));
  ASSERT_EQ(session.Run({"replay", "--run=one", Fixture("llmc_main.log"), Fixture("modded_nanogpt.log")}), 0);
  EXPECT_THAT(session.out, HasSubstr("step 1 of attempt 2"));
}

TEST(ReplayCommand, WhatCannotBeReadIsNamedAndTheRestIsRead) {
  const ScratchDirectory directory;
  std::ofstream(directory.path() + "/shopping.txt") << "milk\nbread\n";
  Session session;
  EXPECT_EQ(session.Run({"replay", "/no/such.log", directory.path() + "/shopping.txt", Fixture("llmc_main.log")}), 1);
  EXPECT_THAT(session.err, HasSubstr("/no/such.log: No such file"));
  EXPECT_THAT(session.err, HasSubstr("shopping.txt: no training log that is known here"));
  EXPECT_THAT(session.out, HasSubstr("8 points"));
}

TEST(ReplayCommand, ABundleThatBreaksOffIsJudgedUpToThere) {
  const ScratchDirectory directory;
  const std::string path = directory.path() + "/cut.tar";
  std::ofstream(directory.path() + "/MANIFEST.json") << "{\"format\": \"lossgauge-bundle-1\"}";
  std::ofstream(directory.path() + "/policy.yaml") << "# defaults\n";
  std::ofstream steps(directory.path() + "/steps.jsonl");
  for (int i = 1; i <= 4000; ++i) steps << "{\"attempt\":\"1\",\"step\":" << i << ",\"loss_nats\":" << (i < 100 ? "3.1" : "\"NaN\"") << "}\n";
  steps.close();
  ASSERT_EQ(std::system(("tar --format=ustar -C " + directory.path() + " -cf " + path + " MANIFEST.json policy.yaml steps.jsonl").c_str()), 0);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  Session session;
  EXPECT_EQ(session.Run({"replay", path}), 1);
  EXPECT_THAT(session.err, HasSubstr("cut.tar: steps.jsonl"));
  EXPECT_THAT(session.out, HasSubstr("points that stood before"));
  EXPECT_THAT(session.out, HasSubstr("Worst verdict: RESTART"));
  EXPECT_EQ(session.Run({"replay", path, "--json"}), 1);
  EXPECT_THAT(session.out, HasSubstr("\"worst\": \"RESTART\""));
  EXPECT_THAT(session.out, HasSubstr("cut.tar: steps.jsonl"));
}

TEST(ReplayCommand, ThresholdsComeFromAPolicyFile) {
  const ScratchDirectory directory;
  const std::string path = directory.path() + "/policy.yaml";
  std::ofstream(path) << "no_such_key: 1\n";
  Session session;
  EXPECT_EQ(session.Run({"replay", Fixture("llmc_main.log"), "--policy=" + path}), 1);
  EXPECT_THAT(session.err, HasSubstr("no_such_key"));
}

TEST(ReplayCommand, LiveLeavesTheRingsOfAJob) {
  const ScratchDirectory directory;
  Session session;
  ASSERT_EQ(session.Run({"replay", Fixture("restarts.log"), "--live=" + directory.path(), "--rate=200"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("Fed 16 points as run restarts.log"));
  int rings = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) rings += entry.path().extension() == ".steps" ? 1 : 0;
  EXPECT_EQ(rings, 3);
  EXPECT_EQ(session.Run({"replay", Fixture("restarts.log"), "--live=" + directory.path() + "/absent"}), 1);
  EXPECT_THAT(session.err, HasSubstr(directory.path() + "/absent"));
  std::ofstream(directory.path() + "/policy.yaml") << "\n";
  EXPECT_EQ(session.Run({"replay", Fixture("restarts.log"), "--live=" + directory.path(), "--policy=" + directory.path() + "/policy.yaml"}), 2);
}

}  // namespace
}  // namespace lossgauge::ctl
