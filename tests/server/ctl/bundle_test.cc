// A bundle goes out as an archive and comes back as the same verdicts.
#include <archive.h>
#include <archive_entry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "server/api/convert_step.h"
#include "server/replay/bundle.h"
#include "server/replay/read_log.h"
#include "server/replay/replay.h"
#include "server/replay/step_record.h"
#include "server/state/joined_step.h"
#include "tests/scratch_directory.h"
#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

class CtlBundle : public ::testing::Test {
 protected:
  CtlBundle() {
    session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}};
    fake.runs["demo"] = MakeRun("demo", v1::WATCH, "spike");
    fake.runs["demo"].mutable_layout()->set_tensor_parallel(4);
    fake.explanation.set_headline("WATCH: spike");
    fake.policy_text = "version: \"post-mortem\"\nloss:\n  floor_nats: 0.25\n";
    fake.page = 100;
  }

  std::map<std::string, std::string> Members() const {
    std::map<std::string, std::string> members;
    archive* handle = archive_read_new();
    archive_read_support_format_tar(handle);
    EXPECT_EQ(archive_read_open_filename(handle, path_.c_str(), 10240), ARCHIVE_OK);
    for (archive_entry* entry = nullptr; archive_read_next_header(handle, &entry) == ARCHIVE_OK;) {
      std::string& content = members[archive_entry_pathname(entry)];
      content.resize(static_cast<std::size_t>(archive_entry_size(entry)));
      EXPECT_EQ(archive_read_data(handle, content.data(), content.size()), static_cast<la_ssize_t>(content.size()));
    }
    archive_read_free(handle);
    return members;
  }
  // A tar archive of somebody else's.
  void WriteTar(const std::vector<std::pair<std::string, std::string>>& members) const {
    archive* handle = archive_write_new();
    archive_write_set_format_ustar(handle);
    ASSERT_EQ(archive_write_open_filename(handle, path_.c_str()), ARCHIVE_OK);
    for (const auto& [name, content] : members) {
      archive_entry* entry = archive_entry_new();
      archive_entry_set_pathname(entry, name.c_str());
      archive_entry_set_filetype(entry, AE_IFREG);
      archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
      archive_write_header(handle, entry);
      archive_write_data(handle, content.data(), content.size());
      archive_entry_free(entry);
    }
    archive_write_free(handle);
  }

  FakeLossGauge fake;
  Session session;
  const ScratchDirectory scratch_;
  const std::string directory_ = scratch_.path(), path_ = scratch_ / "b.tar";
};

struct Points final : replay::LogSink {
  void OnPoint(const replay::LogPoint& point) override { points.push_back(point); }
  void OnEvaluation(const replay::LogEvaluation& evaluation) override { order.push_back("evaluation " + std::to_string(evaluation.loss_nats)); }
  void OnCheckpoint(const replay::LogCheckpoint& checkpoint) override {
    order.push_back("checkpoint " + std::to_string(checkpoint.step) + " after " + std::to_string(points.size()));
  }
  std::vector<replay::LogPoint> points;
  std::vector<std::string> order;
};

// 400 steps: noise, a spike that recovers at 150, NaN that persists from 300 on. The same everywhere.
std::vector<replay::LogPoint> Series() {
  std::vector<replay::LogPoint> points;
  std::uint64_t state = 7;
  for (int i = 0; i < 400; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    replay::LogPoint point;
    point.index = static_cast<std::uint64_t>(i);
    point.line = point.index + 1;
    point.attempt_name = "first";
    point.step = i;
    point.loss = 2.5 + 0.02 * (static_cast<double>(state >> 11) * 0x1p-53 - 0.5);
    if (i >= 150 && i < 155) *point.loss += 2.0;
    if (i >= 300 && i < 320) point.loss = std::numeric_limits<double>::quiet_NaN();
    point.grad_norm = 0.5 + 0.01 * (i % 7);
    point.learning_rate = 1e-4;
    point.step_seconds = 0.25;
    point.unmasked_tokens = point.tokens = 4096;
    points.push_back(point);
  }
  return points;
}

// As lossgauged shows the step.
v1::Step ToStep(const replay::LogPoint& point) {
  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = "demo";
  producer->attempt = point.attempt_name;
  producer->layout.world_size = 1;
  producer->layout.dp = producer->layout.tp = producer->layout.pp = producer->layout.cp = producer->layout.ep = {1, 0};
  producer->layout.has_loss = 1;
  state::RankSample sample;
  sample.producer = producer;
  sample.record = replay::MakeStepRecord(point);
  state::JoinedStep joined = state::JoinSamples({sample});
  joined.summary.sequence = point.index + 1;
  joined.summary.step_seconds = point.step_seconds;
  joined.summary.receive_time_ns = 1'772'600'000'000'000'000 + point.step * 250'000'000;
  v1::Step step;
  api::ToMessage(joined.summary, true, &step);
  return step;
}

TEST_F(CtlBundle, HoldsAllThatIsKnownOfTheRun) {
  v1::Step step = MakeStep(1, 0, 2.5);
  for (std::uint32_t rank : {0u, 1u}) {
    v1::RankStep& own = *step.add_rank_steps();
    own.set_rank(rank);
    own.set_loss_nats(2.0 + rank);
  }
  fake.steps["demo"] = {step, MakeStep(2, 1, 2.5)};
  v1::Incident& incident = fake.incidents["demo"].emplace_back();
  incident.set_id("i-1");
  fake.events.emplace_back().set_kind("checkpoint");
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", path_}), 0) << session.err;
  const auto members = Members();
  EXPECT_EQ(members.size(), 9u);
  EXPECT_THAT(members.at("MANIFEST.json"), HasSubstr("\"format\": \"lossgauge-bundle-1\", \"run\": \"demo\""));
  EXPECT_EQ(members.at("policy.yaml"), fake.policy_text);
  EXPECT_THAT(members.at("run.json"), HasSubstr("\"tensorParallel\": 4"));
  EXPECT_THAT(members.at("explanation.txt"), HasSubstr("WATCH: spike"));
  EXPECT_THAT(members.at("incidents.jsonl"), HasSubstr("\"id\":\"i-1\""));
  EXPECT_THAT(members.at("verdicts.jsonl"), HasSubstr("\"action\":\"WATCH\""));
  EXPECT_THAT(members.at("events.jsonl"), HasSubstr("\"kind\":\"checkpoint\""));
  EXPECT_THAT(members.at("steps.jsonl"), HasSubstr("\"step\": 1, "));
  EXPECT_THAT(members.at("ranks.jsonl"), HasSubstr("\"rank\": 1, \"loss_nats\": 3"));
}

TEST_F(CtlBundle, ReplayedItGivesTheSameVerdictsAsTheRecordsThemselves) {
  const auto points = Series();
  detect::PolicySet policies = *detect::ParsePolicy(fake.policy_text, "p");
  replay::Replay direct("demo", policies);
  for (const auto& point : points) direct.OnPoint(point);
  const replay::ReplayResult expected = direct.Finish();
  ASSERT_EQ(expected.worst, state::Action::kRestart) << "there is something to compare";
  ASSERT_GE(expected.incidents.size(), 2u);

  for (const auto& point : points) fake.steps["demo"].push_back(ToStep(point));
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", path_}), 0) << session.err;
  replay::Replay again("demo", *detect::ParsePolicy(*replay::ReadBundlePolicy(path_), "p"));
  const auto report = replay::ReadLogFile(path_, &again);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->points, 400u);
  const replay::ReplayResult result = again.Finish();

  ASSERT_EQ(result.verdicts.size(), expected.verdicts.size());
  for (std::size_t i = 0; i < result.verdicts.size(); ++i) {
    EXPECT_EQ(result.verdicts[i].at.step, expected.verdicts[i].at.step);
    const state::Verdict &got = result.verdicts[i].verdict, &want = expected.verdicts[i].verdict;
    EXPECT_EQ(got.action, want.action);
    EXPECT_EQ(got.reason, want.reason);
    EXPECT_EQ(got.reason_codes, want.reason_codes);
    EXPECT_EQ(got.evaluated_at_ns, want.evaluated_at_ns);
    EXPECT_EQ(got.policy_version, "post-mortem");
    ASSERT_EQ(got.evidence.size(), want.evidence.size());
    for (std::size_t k = 0; k < got.evidence.size(); ++k) {
      const double a = got.evidence[k].value, b = want.evidence[k].value;
      EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << got.evidence[k].name << a << " " << b;
    }
  }
  ASSERT_EQ(result.incidents.size(), expected.incidents.size());
  for (std::size_t i = 0; i < result.incidents.size(); ++i) EXPECT_EQ(result.incidents[i].incident.summary, expected.incidents[i].incident.summary);
}

TEST_F(CtlBundle, TheReplayCommandJudgesByThePolicyInIt) {
  for (const auto& point : Series()) fake.steps["demo"].push_back(ToStep(point));
  session.Run({"bundle", "demo", "-o", path_});
  ASSERT_EQ(session.Run({"replay", path_, "--json"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("post-mortem"));
  EXPECT_THAT(session.out, HasSubstr("lossgauge-bundle-1"));
}

TEST_F(CtlBundle, BundlesOfOneRunAreJudgedByTheirPolicyUnlessItIsNotOne) {
  for (const auto& point : Series()) fake.steps["demo"].push_back(ToStep(point));
  const std::string second = directory_ + "/second.tar";
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", path_}), 0) << session.err;
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", second}), 0) << session.err;
  ASSERT_EQ(session.Run({"replay", "--run", "demo", path_, second, "--json"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("post-mortem"));
  fake.policy_text = "version: \"later\"\n";
  fs::remove(second);
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", second}), 0) << session.err;
  EXPECT_EQ(session.Run({"replay", "--run", "demo", path_, second}), 1);
  EXPECT_THAT(session.err, HasSubstr("differ: say with --policy which one judges"));
  std::ofstream(directory_ + "/p.yaml") << "version: \"chosen\"\n";
  ASSERT_EQ(session.Run({"replay", "--run", "demo", path_, second, "--json", "--policy", directory_ + "/p.yaml"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("chosen"));
}

TEST_F(CtlBundle, ItSaysByWhichPoliciesItsVerdictsWereGivenAndWhatIsNotJudgedAgain) {
  for (const auto& point : Series()) fake.steps["demo"].push_back(ToStep(point));
  fake.runs["demo"].mutable_layout()->set_world_size(8);
  fake.policy_version = "post-mortem";
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", path_}), 0) << session.err;
  const std::string manifest = Members().at("MANIFEST.json");
  EXPECT_THAT(manifest, HasSubstr("\"ranks\": 8, \"policy_version\": \"post-mortem\", \"verdict_policy_versions\": [\"default-1\"]"));
  EXPECT_THAT(manifest, HasSubstr("\"journal\": false, \"not_judged_again\": \"integrity, accounting, stalls"));
  ASSERT_EQ(session.Run({"replay", path_}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("its verdicts were given by policy default-1; in it is"));
  EXPECT_THAT(session.out, HasSubstr("judged by steps alone, which do not hold"));
  ASSERT_EQ(session.Run({"replay", path_, "--json"}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("\"notes\": ["));
  session.Run({"bundle", "--help"});
  EXPECT_THAT(session.out + session.err, HasSubstr("and not: integrity,"));
}

TEST_F(CtlBundle, EventsComeBackBeforeTheStepsThatFollowedThem) {
  for (const auto& point : Series()) fake.steps["demo"].push_back(ToStep(point));
  v1::Event& checkpoint = fake.events.emplace_back();
  checkpoint.set_kind("checkpoint");
  checkpoint.set_attempt("first");
  checkpoint.set_step(9);
  checkpoint.set_text("/c/9");
  // Step 8 came at 2 s, step 9 at 2.25 s, and "2026-03-04T04:53:22Z" has no digits behind its point.
  checkpoint.mutable_receive_time()->set_seconds(1'772'600'002);
  checkpoint.mutable_receive_time()->set_nanos(1'000'000);
  v1::Event& evaluation = fake.events.emplace_back();
  evaluation.set_kind("evaluation");
  evaluation.set_attempt("first");
  evaluation.set_value(2.25);
  evaluation.mutable_receive_time()->set_seconds(1'772'600'900);
  session.Run({"bundle", "demo", "-o", path_});
  Points sink;
  const auto report = replay::ReadLogFile(path_, &sink);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(sink.order, ::testing::ElementsAre("checkpoint 9 after 9", "evaluation 2.250000"));
}

TEST_F(CtlBundle, AnIncidentsBundleHoldsTheStepsAroundIt) {
  v1::Incident& incident = fake.incidents["demo"].emplace_back();
  incident.set_id("i-1");
  incident.set_onset_step(5000);
  incident.set_last_step(5040);
  ASSERT_EQ(session.Run({"bundle", "demo", "i-1", "-o", path_}), 0) << session.err;
  EXPECT_EQ(fake.last_steps_request.first_step(), 3000);
  EXPECT_EQ(fake.last_steps_request.last_step(), 5540);
  EXPECT_THAT(Members().at("MANIFEST.json"), HasSubstr("\"incident\": \"i-1\""));
  EXPECT_THAT(Members().at("MANIFEST.json"), HasSubstr("\"first_step\": 3000, \"last_step\": 5540"));
  fs::remove(path_);
  EXPECT_EQ(session.Run({"bundle", "demo", "i-2", "-o", path_}), 1);
  EXPECT_THAT(session.err, HasSubstr("run demo has no incident i-2"));
  EXPECT_TRUE(fs::is_empty(directory_)) << "nothing, and nothing half made";
}

TEST_F(CtlBundle, OfARunOfThePastItHoldsWhatTheHistoryHas) {
  fake.past = {"demo"};
  fake.steps["demo"] = {MakeStep(1, 0, 2.5)};
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", path_}), 0) << session.err;
  EXPECT_EQ(Members().count("run.json") + Members().count("policy.yaml"), 0u);
  EXPECT_EQ(*replay::ReadBundlePolicy(path_), "");
  EXPECT_EQ(session.Run({"replay", path_}), 0) << session.err;
}

TEST_F(CtlBundle, WithoutAFileToWriteNothingIsAsked) {
  EXPECT_EQ(session.Run({"bundle", "demo"}), 2);
  EXPECT_THAT(session.err, HasSubstr("-o FILE.tar is missing"));
  EXPECT_EQ(session.Run({"bundle", "demo", "-o", directory_ + "/no/b.tar"}), 1);
}

TEST_F(CtlBundle, OtherArchivesAreNoBundlesAndDamagedOnesSayWhatIsWrong) {
  EXPECT_FALSE(replay::IsBundle(directory_));
  WriteTar({{"README", "hello"}});
  EXPECT_FALSE(replay::IsBundle(path_));
  WriteTar({{"MANIFEST.json", "{\"format\": \"another\"}"}});
  EXPECT_FALSE(replay::IsBundle(path_));
  const std::string manifest = "{\"format\": \"lossgauge-bundle-1\"}";
  Points sink;
  WriteTar({{"MANIFEST.json", manifest}});
  EXPECT_THAT(std::string(replay::ReadBundle(path_, &sink).status().message()), HasSubstr("without steps.jsonl"));
  WriteTar({{"MANIFEST.json", manifest}, {"policy.yaml", std::string((1 << 20) + 1, '#')}});
  EXPECT_EQ(replay::ReadBundlePolicy(path_).status().code(), absl::StatusCode::kInvalidArgument);

  // Lines that are no steps are counted, and what is readable is used.
  WriteTar({{"MANIFEST.json", manifest},
            {"steps.jsonl", "{\"step\": 1, \"loss_nats\": 2.5}\nnonsense\n{\"loss_nats\": 2}\n{\"step\": 1}\n{\"step\": -4}\n"
                            "{\"step\": 2, \"loss_nats\": \"NaN\", \"target_fingerprint\": \"18364758544493064720\"}\n{\"step\": 3, \"loss"}});
  const auto report = replay::ReadLogFile(path_, &sink);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(sink.points.size(), 2u);
  EXPECT_TRUE(std::isnan(*sink.points[1].loss));
  EXPECT_EQ(sink.points[1].target_fingerprint, 18364758544493064720u);
  EXPECT_EQ(report->oddities[static_cast<std::size_t>(replay::Oddity::kUnreadable)].count, 3u);
  EXPECT_EQ(report->oddities[static_cast<std::size_t>(replay::Oddity::kRepeatedStep)].count, 1u);
  EXPECT_EQ(report->oddities[static_cast<std::size_t>(replay::Oddity::kCutOff)].count, 1u);

  fs::resize_file(path_, 100);  // in the middle of the first header
  EXPECT_FALSE(replay::IsBundle(path_));
}

}  // namespace
}  // namespace lossgauge::ctl
