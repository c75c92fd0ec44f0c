#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "proto/tensorboard/record_framing.h"
#include "server/replay/read_log.h"
#include "tensorboard/event.pb.h"
#include "tests/scratch_directory.h"
#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class CtlExport : public ::testing::Test {
 protected:
  CtlExport() {
    session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}};
    fake.runs["demo"] = MakeRun("demo", v1::CONTINUE, "fresh");
    for (int i = 0; i < 3; ++i) fake.steps["demo"].push_back(MakeStep(static_cast<std::uint64_t>(i) + 1, i, 2.5 + 0.1 * i));
    v1::Step& second = fake.steps["demo"][1];
    second.set_loss_nats(std::numeric_limits<double>::quiet_NaN());
    second.set_grad_norm(std::numeric_limits<double>::infinity());
    second.set_target_fingerprint(0xfedcba9876543210u);
    second.mutable_receive_time()->set_seconds(1'772'600'767);
    second.mutable_receive_time()->set_nanos(250'000'000);
    fake.steps["demo"][2].clear_loss_nats();
    fake.steps["demo"][2].set_attempt("it's \"2\", again");
  }

  static std::vector<std::string> Lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  // Cells of a row that holds no quotes, by the names of the header.
  static std::map<std::string, std::string> Cells(const std::string& header, const std::string& row) {
    std::map<std::string, std::string> cells;
    std::istringstream names(header), values(row + ",");
    for (std::string name, value; std::getline(names, name, ',') && std::getline(values, value, ',');) cells[name] = value;
    return cells;
  }
  static std::vector<tensorboard::Event> Events(std::string_view file) {
    std::vector<tensorboard::Event> events;
    while (!file.empty()) {
      std::uint64_t bytes = 0;
      EXPECT_GE(file.size(), tensorboard::kRecordHeadBytes);
      EXPECT_TRUE(tensorboard::ReadRecordHead(file, &bytes));
      file.remove_prefix(tensorboard::kRecordHeadBytes);
      const std::string_view payload = file.substr(0, bytes);
      EXPECT_TRUE(tensorboard::PayloadMatches(payload, file.substr(bytes, tensorboard::kRecordTailBytes)));
      file.remove_prefix(bytes + tensorboard::kRecordTailBytes);
      EXPECT_TRUE(events.emplace_back().ParseFromArray(payload.data(), static_cast<int>(payload.size())));
    }
    return events;
  }

  FakeLossGauge fake;
  Session session;
  const ScratchDirectory scratch_;
  const std::string directory_ = scratch_.path();
};

TEST_F(CtlExport, CsvHasACellForEachValueAndNoneForWhatIsAbsent) {
  ASSERT_EQ(session.Run({"export", "demo"}), 0) << session.err;
  const auto lines = Lines(session.out);
  ASSERT_EQ(lines.size(), 4u);
  const auto first = Cells(lines[0], lines[1]);
  EXPECT_EQ(first.at("loss_nats"), "2.5");
  EXPECT_EQ(first.at("grad_norm"), "");
  EXPECT_EQ(first.at("unmasked_tokens"), "4096");
  EXPECT_EQ(first.at("worst_row_position"), "");
  EXPECT_EQ(first.at("thinned_steps"), "");
  const auto second = Cells(lines[0], lines[2]);
  EXPECT_EQ(second.at("loss_nats"), "NaN");
  EXPECT_EQ(second.at("grad_norm"), "Infinity");
  EXPECT_EQ(second.at("target_fingerprint"), "18364758544493064720");
  EXPECT_EQ(second.at("receive_time"), "2026-03-04T05:06:07.250Z");
  EXPECT_THAT(lines[3], HasSubstr("3,\"it's \"\"2\"\", again\",2,"));
  EXPECT_TRUE(fake.last_steps_request.include_thinned());
}

TEST_F(CtlExport, JsonLinesLackTheKeyOfWhatIsAbsent) {
  ASSERT_EQ(session.Run({"export", "demo", "--format=jsonl"}), 0) << session.err;
  const auto lines = Lines(session.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("\"loss_nats\": 2.5, "));
  EXPECT_THAT(lines[0], Not(HasSubstr("grad_norm")));
  EXPECT_THAT(lines[1], HasSubstr("\"loss_nats\": \"NaN\", \"grad_norm\": \"Infinity\""));
  EXPECT_THAT(lines[1], HasSubstr("\"target_fingerprint\": \"18364758544493064720\""));
  EXPECT_THAT(lines[2], Not(HasSubstr("\"loss_nats\"")));
}

TEST_F(CtlExport, RowsOfThinnedStepsSaySo) {
  v1::Thinned& thinned = *fake.steps["demo"][0].mutable_thinned();
  thinned.set_steps(64);
  thinned.set_first_step(-63);
  v1::ValueRange& range = *thinned.add_ranges();
  range.set_name("loss_nats");
  range.set_min(2.25);
  range.set_max(3);
  session.Run({"export", "demo"});
  const auto lines = Lines(session.out);
  EXPECT_EQ(Cells(lines[0], lines[1]).at("thinned_steps"), "64");
  EXPECT_EQ(Cells(lines[0], lines[1]).at("thinned_first_step"), "-63");
  session.Run({"export", "demo", "--format=jsonl"});
  EXPECT_THAT(Lines(session.out)[0], HasSubstr("\"loss_nats_min\": 2.25, \"loss_nats_max\": 3"));
}

TEST_F(CtlExport, AnEventFileHoldsEachValueThatWasMeasuredAtItsStep) {
  ASSERT_EQ(session.Run({"export", "demo", "--format=tensorboard"}), 0) << session.err;
  const auto events = Events(session.out);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  std::map<std::string, float> values;
  for (const auto& value : events[2].summary().value()) values[value.tag()] = value.simple_value();
  EXPECT_EQ(events[2].step(), 1);
  EXPECT_DOUBLE_EQ(events[2].wall_time(), 1'772'600'767.25);
  EXPECT_TRUE(std::isnan(values.at("loss_nats")));
  EXPECT_TRUE(std::isinf(values.at("grad_norm")));
  EXPECT_EQ(values.at("unmasked_tokens"), 4096.0f);
  EXPECT_EQ(values.count("perplexity"), 0u);
  EXPECT_EQ(values.count("sequence") + values.count("target_fingerprint") + values.count("rank"), 0u) << "no curves";
}

TEST_F(CtlExport, AnAttemptThatGoesBackBeginsASessionSoThatTensorboardForgetsWhatItReplaces) {
  fake.steps["demo"][2].set_step(1);
  session.Run({"export", "demo", "--format=tensorboard"});
  const auto events = Events(session.out);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[3].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[3].step(), 1);
}

TEST_F(CtlExport, ARanksOwnValuesAreRowsWithItsRank) {
  v1::RankStep& rank = *fake.steps["demo"][0].add_rank_steps();
  rank.set_rank(3);
  rank.set_loss_nats(9.5);
  ASSERT_EQ(session.Run({"export", "demo", "--rank=3"}), 0);
  const auto lines = Lines(session.out);
  ASSERT_EQ(lines.size(), 2u) << "steps without the rank have no row";
  EXPECT_EQ(lines[0], "sequence,attempt,step,receive_time,rank,loss_nats,grad_norm,max_abs_logit,unmasked_tokens,nonfinite_rows,lost_before");
  EXPECT_EQ(lines[1], "1,1,0,,3,9.5,,,0,0,0");
  EXPECT_TRUE(fake.last_steps_request.include_ranks());
}

TEST_F(CtlExport, RangeAttemptAndPagesAreAskedFor) {
  fake.page = 2;
  ASSERT_EQ(session.Run({"export", "demo", "--from=1", "--to=7", "--attempt=a"}), 0);
  EXPECT_EQ(Lines(session.out).size(), 4u) << "two pages";
  EXPECT_EQ(fake.last_steps_request.first_step(), 1);
  EXPECT_EQ(fake.last_steps_request.last_step(), 7);
  EXPECT_EQ(fake.last_steps_request.attempt(), "a");
}

TEST_F(CtlExport, AFileAppearsOnlyOnceItIsWhole) {
  const std::string path = directory_ + "/out.csv";
  ASSERT_EQ(session.Run({"export", "demo", "-o", path}), 0) << session.err;
  EXPECT_EQ(session.out, "");
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  EXPECT_EQ(Lines(content.str()).size(), 4u);
  fs::remove(path);
  EXPECT_EQ(session.Run({"export", "nobody", "-o", path}), 1);
  EXPECT_TRUE(fs::is_empty(directory_)) << "nothing, and nothing half made";
  EXPECT_EQ(session.Run({"export", "demo", "-o", directory_ + "/no/such/place.csv"}), 1);
  EXPECT_THAT(session.err, HasSubstr("/no/such/place.csv"));
}

TEST_F(CtlExport, WrongUseIsSaidBeforeAnythingIsAsked) {
  EXPECT_EQ(session.Run({"export", "demo", "--format=xml"}), 2);
  EXPECT_THAT(session.err, HasSubstr("none of csv, jsonl, tensorboard"));
  EXPECT_EQ(session.Run({"export", "demo", "--from=8", "--to=7"}), 2);
  session.terminal = true;
  EXPECT_EQ(session.Run({"export", "demo", "--format=tensorboard"}), 2);
  EXPECT_THAT(session.err, HasSubstr("name a file"));
}

// What is read back of an export.
struct Points final : replay::LogSink {
  void OnPoint(const replay::LogPoint& point) override { points.push_back(point); }
  std::vector<replay::LogPoint> points;
};

TEST_F(CtlExport, ATerminalIsGivenNothingToObeyAndAFileTheNamesAsTheyAre) {
  for (v1::Step& step : fake.steps["demo"]) step.set_attempt("a\x1b[31m\u009b2J");
  for (const std::string format : {"csv", "jsonl"}) {
    ASSERT_EQ(session.Run({"export", "demo", "--format", format}), 0) << session.err;
    EXPECT_THAT(session.out, HasSubstr("\u009b"));
    session.terminal = true;
    ASSERT_EQ(session.Run({"export", "demo", "--format", format}), 0) << session.err;
    session.terminal = false;
    EXPECT_THAT(session.out, Not(HasSubstr("\x1b")));
    EXPECT_THAT(session.out, Not(HasSubstr("\u009b")));
    EXPECT_EQ(Lines(session.out).size(), format == "csv" ? 4u : 3u);
  }
}

TEST_F(CtlExport, ASpreadsheetIsGivenNothingToComputeAndReplayTheNameAsItWas) {
  for (const std::string attempt : {"=1+1", "+1", "-1", "@SUM(1)", "a\n=1"}) {
    fake.steps["demo"].clear();
    for (int i = 0; i < 40; ++i) {
      v1::Step step = MakeStep(static_cast<std::uint64_t>(i) + 1, i, 2.5);
      step.set_attempt(attempt);
      fake.steps["demo"].push_back(step);
    }
    const std::string path = directory_ + "/formula.csv";
    ASSERT_EQ(session.Run({"export", "demo", "-o", path}), 0) << session.err;
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    for (const std::string formula : {"=", "+", "-", "@"}) {
      EXPECT_THAT(text.str(), Not(HasSubstr("," + formula))) << attempt;
      EXPECT_THAT(text.str(), Not(HasSubstr(",\"" + formula))) << attempt;
    }
    Points sink;
    ASSERT_TRUE(replay::ReadLogFile(path, &sink).ok());
    ASSERT_EQ(sink.points.size(), 40u) << attempt;
    EXPECT_EQ(sink.points[0].attempt_name, attempt);
  }
}

TEST_F(CtlExport, ReplayReadsEachFormatBack) {
  // Enough of them that a reader knows a series.
  fake.steps["demo"].clear();
  for (int i = 0; i < 40; ++i) {
    v1::Step step = MakeStep(static_cast<std::uint64_t>(i) + 1, i + 100, 2.5 - 0.01 * i);
    step.set_grad_norm(0.5);
    step.set_learning_rate(0.001);
    step.set_finite_tokens(4096);
    step.mutable_receive_time()->set_seconds(1'772'600'000 + i);
    fake.steps["demo"].push_back(step);
  }
  fake.steps["demo"][30].set_loss_nats(std::numeric_limits<double>::quiet_NaN());
  for (const std::string format : {"csv", "jsonl", "tensorboard"}) {
    const std::string path = directory_ + "/out";
    ASSERT_EQ(session.Run({"export", "demo", "--format", format, "-o", path}), 0) << session.err;
    Points sink;
    const auto report = replay::ReadLogFile(path, &sink);
    ASSERT_TRUE(report.ok()) << format << report.status();
    ASSERT_EQ(sink.points.size(), 40u) << format;
    EXPECT_EQ(sink.points[0].step, 100) << format;
    EXPECT_NEAR(*sink.points[7].loss, 2.43, 1e-6) << format;
    EXPECT_EQ(*sink.points[7].grad_norm, 0.5) << format;
    EXPECT_TRUE(std::isnan(*sink.points[30].loss)) << format;
    if (format != "tensorboard") {
      EXPECT_EQ(*sink.points[7].loss, 2.5 - 0.01 * 7) << "the same bits";
    }
  }
}

}  // namespace
}  // namespace lossgauge::ctl
