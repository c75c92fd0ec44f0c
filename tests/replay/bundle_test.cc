// Bundles as they come from anywhere: what their events become, and what their size may cost.
#include <archive.h>
#include <archive_entry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "server/replay/bundle.h"
#include "server/replay/bundle_events.h"
#include "server/replay/joined_files.h"
#include "server/replay/read_log.h"
#include "server/replay/replay.h"
#include "server/replay/step_record.h"
#include "server/state/joined_step.h"
#include "tests/scratch_directory.h"

namespace lossgauge::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kManifest[] = "{\"format\": \"lossgauge-bundle-1\"}";

using Members = std::vector<std::pair<std::string, std::string>>;

class Bundle : public ::testing::Test {
 protected:
  void Write(const Members& members, bool gzip = false) const {
    archive* handle = archive_write_new();
    archive_write_set_format_ustar(handle);
    if (gzip) archive_write_add_filter_gzip(handle);
    ASSERT_EQ(archive_write_open_filename(handle, path_.c_str()), ARCHIVE_OK);
    for (const auto& [name, content] : members) {
      archive_entry* entry = archive_entry_new();
      archive_entry_set_pathname(entry, name.c_str());
      archive_entry_set_filetype(entry, AE_IFREG);
      archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
      ASSERT_EQ(archive_write_header(handle, entry), ARCHIVE_OK);
      ASSERT_EQ(archive_write_data(handle, content.data(), content.size()), static_cast<la_ssize_t>(content.size()));
      archive_entry_free(entry);
    }
    archive_write_free(handle);
  }

  const ScratchDirectory scratch_;
  const std::string path_ = scratch_ / "b.tar";
};

struct Told final : LogSink {
  void OnPoint(const LogPoint& point) override {
    order.push_back(absl::StrCat(point.attempt_name, " ", point.step));
    points.push_back(point);
  }
  void OnEvaluation(const LogEvaluation& evaluation) override { order.push_back(absl::StrCat("evaluation ", evaluation.loss_nats)); }
  void OnCheckpoint(const LogCheckpoint& checkpoint) override {
    order.push_back(absl::StrCat("checkpoint ", checkpoint.step));
    longest_text = std::max(longest_text, checkpoint.path.size());
    ++checkpoints;
  }
  void OnJobEvent(const LogJobEvent& event) override {
    switch (event.kind) {
      case LogJobEvent::kResume: order.push_back(absl::StrCat("resume ", event.step, " ", event.text)); break;
      case LogJobEvent::kPhaseBegin: order.push_back(absl::StrCat("begin ", event.phase)); break;
      case LogJobEvent::kPhaseEnd: order.push_back(absl::StrCat("end ", event.phase)); break;
      case LogJobEvent::kEnd: order.push_back(absl::StrCat(event.failed ? "failed " : "finished ", event.text)); break;
    }
  }
  std::vector<std::string> order;
  std::vector<LogPoint> points;
  std::size_t longest_text = 0, checkpoints = 0;
};

std::string Step(const std::string& attempt, int step, int second) {
  return absl::StrCat("{\"attempt\": \"", attempt, "\", \"step\": ", step, ", \"receive_time\": \"2026-03-04T05:06:", second, "Z\", \"loss_nats\": 2.5}\n");
}

std::string Event(const std::string& attempt, const std::string& kind, int second, const std::string& more) {
  return absl::StrCat("{\"attempt\":\"", attempt, "\",\"kind\":\"", kind, "\",\"receiveTime\":\"2026-03-04T05:06:", second, ".500Z\"", more, "}\n");
}

// An attempt that fails, its end seen late, and one that resumes from its checkpoint.
const std::string kTwoAttempts = Step("a", 0, 10) + Step("a", 1, 11) + Step("a", 2, 12) + Step("b", 2, 20) + Step("b", 3, 21);
const std::string kTheirEvents = Event("a", "checkpoint", 10, R"(,"step":"0","text":"/c/0")") + Event("a", "phase_begin", 11, R"(,"phase":"evaluation")") +
                                 Event("a", "phase_begin", 11, R"(,"rank":1,"phase":"evaluation")") +
                                 Event("a", "phase_end", 11, R"(,"phase":"evaluation")") + Event("b", "resume", 15, R"(,"step":"1","text":"/c/0")") +
                                 Event("b", "evaluation", 16, R"(,"value":2.25)") + Event("a", "end", 30, R"(,"count":"1","text":"done")") +
                                 Event("a", "end", 31, R"(,"rank":1,"count":"2","text":"out of memory")") +
                                 Event("b", "end", 40, R"(,"count":"1","text":"done")");

TEST_F(Bundle, EventsAreOfTheirAttemptAndEndsSayWhetherItFailed) {
  Write({{"MANIFEST.json", kManifest}, {"events.jsonl", kTheirEvents}, {"steps.jsonl", kTwoAttempts}});
  Told told;
  JoinedFiles joined(&told);
  ASSERT_TRUE(ReadBundle(path_, &joined).ok());
  EXPECT_THAT(told.order, ElementsAre("a 0", "checkpoint 0", "a 1", "begin 2", "end 2", "a 2", "failed out of memory", "resume 1 /c/0", "b 2",
                                      "evaluation 2.25", "b 3", "finished done"));
}

TEST_F(Bundle, AnIncidentsBundleIsCutOutOfItsAttempts) {
  Write({{"MANIFEST.json", R"({"format": "lossgauge-bundle-1", "first_step": 1, "last_step": 3})"},
         {"events.jsonl", kTheirEvents},
         {"steps.jsonl", Step("a", 1, 11) + Step("a", 2, 12) + Step("b", 2, 20) + Step("b", 3, 21)}});
  Told told;
  ASSERT_TRUE(ReadBundle(path_, &told).ok());
  EXPECT_THAT(told.order, ElementsAre("a 1", "begin 2", "end 2", "a 2", "failed out of memory", "resume 1 /c/0", "b 2", "evaluation 2.25", "b 3"))
      << "what was before its steps is not known, and the last attempt may have gone on";
}

TEST_F(Bundle, AFailureThatTheJobDeclaredIsJudged) {
  std::string steps;
  for (int i = 0; i < 60; ++i) steps += absl::StrCat("{\"attempt\": \"a\", \"step\": ", i, ", \"step_seconds\": 1, \"loss_nats\": 2.5}\n");
  const std::string checkpoint = R"({"attempt":"a","kind":"checkpoint","step":"30","text":"/c/30","receiveTime":"2026-03-04T05:06:07Z"})" "\n";
  for (const bool failed : {false, true}) {
    Write({{"MANIFEST.json", kManifest},
           {"events.jsonl", checkpoint + Event("a", "end", 40, failed ? R"(,"count":"2","text":"out of memory")" : R"(,"count":"1")")},
           {"steps.jsonl", steps}});
    Replay replay("demo", detect::DefaultPolicies());
    ASSERT_TRUE(ReadBundle(path_, &replay).ok());
    const ReplayResult result = replay.Finish();
    const state::Verdict& last = result.verdicts.back().verdict;
    EXPECT_EQ(last.action, failed ? state::Action::kRestart : state::Action::kUnknown);
    EXPECT_THAT(last.reason_codes, ElementsAre(failed ? "failed" : "ended"));
    EXPECT_EQ(result.worst == state::Action::kRestart, failed);
    if (failed) {
      ASSERT_TRUE(last.resume_point);
      EXPECT_EQ(last.resume_point->path, "/c/30");
    }
  }
}

TEST_F(Bundle, EventsAreHeldInBoundedMemoryAndTheRestIsCounted) {
  const std::string text(2000, 'x');
  std::string events;
  for (int i = 0; i < 80'000; ++i) events += absl::StrCat("{\"attempt\":\"a\",\"kind\":\"checkpoint\",\"step\":\"", i, "\",\"text\":\"", text, "\"}\n");
  Write({{"MANIFEST.json", kManifest}, {"events.jsonl", events}, {"steps.jsonl", Step("a", 0, 10)}});
  Told told;
  const auto report = ReadBundle(path_, &told);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(told.longest_text, LG_EVENT_TEXT_BYTES);
  EXPECT_GT(told.checkpoints, 10'000u);
  EXPECT_LE(told.checkpoints * LG_EVENT_TEXT_BYTES, BundleEvents::kMaxBytes);
  EXPECT_EQ(told.checkpoints + report->CountOf(Oddity::kTooManyEvents), 80'000u);
}

TEST_F(Bundle, WhatUnpacksToTooMuchEndsWithAnError) {
  const std::string much(std::size_t{32} << 20, ' ');
  for (const char* name : {"events.jsonl", "steps.jsonl", "nothing.known"}) {
    Write({{"MANIFEST.json", kManifest}, {name, much}, {"steps.jsonl", Step("a", 0, 10)}}, true);
    ASSERT_LT(fs::file_size(path_), 100'000u);
    Told told;
    EXPECT_THAT(std::string(ReadBundle(path_, &told).status().message()), HasSubstr("unpacks to more than 200 times its size")) << name;
    EXPECT_TRUE(IsBundle(path_)) << "its first member is looked at, nothing else";
  }
  std::string steps;
  for (int i = 0; i < 1000; ++i) steps += Step("a", i, 10);
  Write({{"MANIFEST.json", kManifest}, {"steps.jsonl", steps}}, true);
  Told told;
  EXPECT_TRUE(ReadBundle(path_, &told).ok()) << "a bundle that was compressed";
  EXPECT_EQ(told.points.size(), 1000u);
}

TEST_F(Bundle, TheManifestIsTheFirstMemberOrItIsNone) {
  Write({{"steps.jsonl", kTwoAttempts}, {"MANIFEST.json", kManifest}});
  EXPECT_FALSE(IsBundle(path_));
}

TEST_F(Bundle, OneThatIsCutOffIsUsedAsFarAsItGoes) {
  std::string steps;
  for (int i = 0; i < 1000; ++i) steps += Step("a", i, 10);
  Write({{"MANIFEST.json", kManifest}, {"steps.jsonl", steps}});
  fs::resize_file(path_, fs::file_size(path_) / 2);
  Told told;
  const auto report = ReadLogFile(path_, &told);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(told.points.size(), 300u);
  EXPECT_EQ(report->points, told.points.size());
  EXPECT_THAT(report->read_error, HasSubstr("steps.jsonl"));
}

TEST_F(Bundle, StepsThatStandForMoreThanThereWereAreNone) {
  Write({{"MANIFEST.json", kManifest},
         {"steps.jsonl", "{\"step\": 9, \"thinned_steps\": 10, \"loss_nats\": 2}\n{\"step\": 19, \"thinned_steps\": 9223372036854775807, \"loss_nats\": 2}\n"
                         "{\"step\": 29, \"thinned_steps\": 31, \"loss_nats\": 2}\n{\"step\": 39, \"thinned_steps\": \"10\", \"loss_nats\": 2}\n"}});
  Told told;
  const auto report = ReadBundle(path_, &told);
  ASSERT_TRUE(report.ok());
  ASSERT_THAT(told.order, ElementsAre(" 9", " 39"));
  EXPECT_EQ(told.points[0].interval_steps, 10);
  EXPECT_EQ(told.points[1].interval_steps, 10);
  EXPECT_EQ(report->CountOf(Oddity::kAbsurdStep), 2u);
}

TEST_F(Bundle, ObjectiveAndZLossAreThoseOfTheStep) {
  Write({{"MANIFEST.json", kManifest},
         {"steps.jsonl", R"({"step": 1, "loss_nats": 2.5, "objective_nats": 2.75, "z_loss_nats": 0.125, "finite_tokens": 8, "unmasked_tokens": 8})" "\n"}});
  Told told;
  ASSERT_TRUE(ReadBundle(path_, &told).ok());
  const lg_step_record record = MakeStepRecord(told.points.at(0));
  ASSERT_TRUE(record.present & LG_HAS_OBJECTIVE);
  EXPECT_EQ(lg_fixed128_to_double(record.objective_sum), 8 * 2.75);
  EXPECT_EQ(lg_fixed128_to_double(record.z_loss_sum), 8 * 0.125);
  told.points[0].z_loss_nats = NAN;
  EXPECT_FALSE(MakeStepRecord(told.points[0]).present & LG_HAS_OBJECTIVE);
}

TEST_F(Bundle, AnExportAsATableHasThemToo) {
  const auto table = MakeMemorySource("step,loss_nats,z_loss_nats,objective_nats\n1,2.5,0.125,2.75\n2,2.5,0.125,2.75\n");
  Told told;
  ASSERT_TRUE(ReadLog(table.get(), &told).ok());
  ASSERT_EQ(told.points.size(), 2u);
  EXPECT_EQ(told.points[0].loss, 2.5);
  EXPECT_EQ(told.points[0].z_loss_nats, 0.125);
  EXPECT_EQ(told.points[0].objective_nats, 2.75);
}

TEST_F(Bundle, ItsNotesSayWhatNoBundleCanGiveAgain) {
  const std::string step = R"({"step": 1, "loss_nats": 2.5, "ranks": 8})" "\n";
  Write({{"MANIFEST.json", R"({"format": "lossgauge-bundle-1", "policy_version": "p-2", "verdict_policy_versions": ["p-1", "p-2"]})"}, {"steps.jsonl", step}});
  Told told;
  auto report = ReadBundle(path_, &told);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->notes, ElementsAre(::testing::AllOf(HasSubstr("integrity and accounting, stalls"), HasSubstr("those of 8 ranks together")),
                                         "its verdicts were given by policy p-1, p-2; in it is p-2, that of the day when it was packed"));
  Write({{"MANIFEST.json", R"({"format": "lossgauge-bundle-1", "policy_version": "p-2", "verdict_policy_versions": ["p-2"]})"},
         {"steps.jsonl", R"({"step": 1, "loss_nats": 2.5, "ranks": 1})" "\n"}});
  report = ReadBundle(path_, &told);
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->notes, ElementsAre(::testing::Not(HasSubstr("together"))));
}

}  // namespace
}  // namespace lossgauge::replay
