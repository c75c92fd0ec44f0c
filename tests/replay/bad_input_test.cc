// Damaged and odd logs: everything readable is used, the rest is counted with its lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "proto/tensorboard/record_framing.h"
#include "tensorboard/event.pb.h"
#include "tests/replay/read_points.h"

namespace lossgauge::replay {
namespace {

TEST(BadInput, NothingInAFileIsNoPointAndNoError) {
  for (const std::string& text : {std::string(), std::string("\n\n"), std::string("{}"), std::string("[]"), std::string("hello\n"), std::string("{\"a\": [1, 2]}")}) {
    absl::Status status;
    const ReadPoints read = ReadText(text, &status);
    EXPECT_TRUE(status.ok()) << text;
    EXPECT_TRUE(read.points.empty()) << text;
    EXPECT_EQ(read.report.format, "unknown") << text;
  }
}

TEST(BadInput, PackedFilesAreNamed) {
  absl::Status status;
  ReadText(std::string("\x1f\x8b\x08\0abc", 7), &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("gzip"));
}

TEST(BadInput, BytesThatAreNoTextAreCountedAndTheRestIsRead) {
  std::string noise;
  for (int i = 0; i < 300; ++i) noise += static_cast<char>(i * 37 + 1);
  const ReadPoints read = ReadText(Lines(1, 5) + noise + "\n" + Lines(6, 9));
  EXPECT_THAT(Steps(read), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_GE(read.report.CountOf(Oddity::kBinary) + read.report.CountOf(Oddity::kInvalidUtf8), 1u);
}

TEST(BadInput, Utf16OfEitherOrderIsRead) {
  for (const bool little : {true, false}) {
    std::string wide = little ? "\xff\xfe" : "\xfe\xff";
    for (const char c : Lines(1, 4)) {
      if (!little) wide += '\0';
      wide += c;
      if (little) wide += '\0';
    }
    const ReadPoints read = ReadText(wide);
    EXPECT_THAT(Steps(read), ::testing::ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(read.report.encoding, little ? "utf-16le" : "utf-16be");
  }
}

TEST(BadInput, ACellOfATableMayHaveSeveralLines) {
  const ReadPoints read = ReadText("step,loss,note\n1,2.5,\"one\ntwo, \"\"three\"\"\"\n\"2\",2.4,\"a\n\nb\"\n3,2.3,c\n");
  EXPECT_THAT(Steps(read), ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(read.report.CountOf(Oddity::kUnreadable), 0u);
}

TEST(BadInput, AQuoteThatNobodyClosesTakesNoOtherRowWithIt) {
  const std::string open = "step,loss,note\n1,2.5,\"cut\n", below = "3,2.3,c\n4,2.2,\"d\"\n";
  for (const std::string& text : {open + below, open + "2,2.4,\"closed\"\n" + below, open + "2,2.4,\"and\nso on\"\n" + below}) {
    const ReadPoints read = ReadText(text);
    EXPECT_THAT(Steps(read), ::testing::IsSupersetOf({3, 4})) << text;
    EXPECT_GE(read.report.CountOf(Oddity::kUnreadable), 1u) << text;
  }
  std::string many = open;
  for (int i = 2; i < 500; ++i) many += std::to_string(i) + ",2.5,c\n";
  EXPECT_EQ(ReadText(many).points.size(), 498u);
}

TEST(BadInput, AStepBelowZeroIsNoPoint) {
  const ReadPoints read = ReadText("step:-1 loss:9.0\n" + Lines(0, 3));
  EXPECT_THAT(Steps(read), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(read.report.CountOf(Oddity::kNegativeStep), 1u);
  EXPECT_EQ(read.report.oddities[static_cast<std::size_t>(Oddity::kNegativeStep)].first_line, 1u);
}

TEST(BadInput, ALoneJumpIsPassedOverAndOneThatStaysIsBelieved) {
  const ReadPoints lone = ReadText(Lines(1, 5) + "step:1000000000 loss:1.0\n" + Lines(6, 8));
  EXPECT_THAT(Steps(lone), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(lone.report.CountOf(Oddity::kLoneJump), 1u);
  EXPECT_EQ(lone.report.attempts, 1u);
  const ReadPoints stays = ReadText(Lines(1, 3) + "step:1000000000 loss:1.0\nstep:1000000001 loss:1.0\n");
  EXPECT_THAT(Steps(stays), ::testing::ElementsAre(1, 2, 3, 1000000000, 1000000001));
  EXPECT_EQ(stays.report.CountOf(Oddity::kLoneJump), 0u);
}

TEST(BadInput, StepsThatGoBackAreAnotherAttemptAndARepeatedOneIsCounted) {
  const ReadPoints back = ReadText(Lines(1, 6) + Lines(4, 8));
  EXPECT_THAT(Steps(back), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8));
  EXPECT_EQ(back.points[5].attempt, 1u);
  EXPECT_EQ(back.points[6].attempt, 2u);
  const ReadPoints twice = ReadText(Lines(1, 4) + Lines(4, 4) + Lines(5, 6));
  EXPECT_THAT(Steps(twice), ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(twice.report.CountOf(Oddity::kRepeatedStep), 1u);
  EXPECT_EQ(twice.report.attempts, 1u);
}

TEST(BadInput, WhatALineDoesNotSayIsAbsent) {
  const ReadPoints read = ReadText(Lines(1, 3));
  for (const LogPoint& point : read.points) {
    EXPECT_FALSE(point.grad_norm || point.learning_rate || point.tokens || point.nonfinite_rows || point.step_seconds || point.skipped_iterations);
  }
}

TEST(BadInput, NormsOfPartsAreNotTheGradientNorm) {
  const ReadPoints read = ReadText("step,loss_nats,logit_grad_norm,hidden_grad_norm,head_grad_norm,z_loss_nats,param_norm\n1,3,9,9,9,9,9\n2,3,9,9,9,9,9\n");
  ASSERT_EQ(read.points.size(), 2u);
  EXPECT_EQ(read.report.loss_name, "loss_nats");
  EXPECT_FALSE(read.points[0].grad_norm);
}

TEST(BadInput, NotFiniteIsALossAndWordsAreNot) {
  const ReadPoints read = ReadText(Lines(1, 3) + "step:4 loss:nan\nstep:5 loss:-inf\nstep:6 loss:1e999\nstep:7 loss:none\nstep:8 loss:info\n" + Lines(9, 9));
  ASSERT_THAT(Steps(read), ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 9));
  EXPECT_TRUE(std::isnan(*read.points[3].loss));
  EXPECT_EQ(*read.points[4].loss, -INFINITY);
  EXPECT_EQ(*read.points[5].loss, INFINITY);
}

TEST(BadInput, CommasPartThousandsOfStepsAndAreDecimalPointsOfLosses) {
  const ReadPoints read = ReadText("step 999 | loss: 2,75 | tok/sec: 1,048,576\nstep 1,000 | loss: 2,5 | tok/sec: 1,048,576\nstep 1,001 | loss: 2,25\n");
  ASSERT_THAT(Steps(read), ::testing::ElementsAre(999, 1000, 1001));
  EXPECT_EQ(*read.points[0].loss, 2.75);
  EXPECT_EQ(*read.points[2].loss, 2.25);
  EXPECT_EQ(read.report.CountOf(Oddity::kDecimalComma), 3u);
}

TEST(BadInput, ACurveDownloadedFromTensorBoardIsTakenForTheLoss) {
  const ReadPoints read = ReadText("Wall time,Step,Value\n1700000000.1,10,2.5\n1700000001.1,20,2.25\n");
  ASSERT_THAT(Steps(read), ::testing::ElementsAre(10, 20));
  EXPECT_EQ(*read.points[1].loss, 2.25);
}

TEST(BadInput, ABrokenDocumentGivesWhatStandsAroundTheBreak) {
  std::string text = "{\"log_history\": [\n";
  for (int i = 1; i <= 5; ++i) absl::StrAppendFormat(&text, "{\"step\": %d, \"loss\": %d.5},\n", i * 10, 9 - i);
  const ReadPoints cut = ReadText(text + "{\"step\": 60, \"lo");
  EXPECT_THAT(Steps(cut), ::testing::ElementsAre(10, 20, 30, 40, 50));
  EXPECT_EQ(cut.report.CountOf(Oddity::kCutOff), 1u);
  const ReadPoints broken = ReadText(text + "}}}\n{\"step\": 60, \"loss\": 3}]}");
  EXPECT_THAT(Steps(broken), ::testing::ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_EQ(broken.report.CountOf(Oddity::kUnreadable) + broken.report.CountOf(Oddity::kCutOff), 1u);
}

TEST(BadInput, DeepNestingEndsInAnOddity) {
  const ReadPoints read = ReadText("{\"log_history\": " + std::string(100'000, '['));
  EXPECT_TRUE(read.points.empty());
}

TEST(BadInput, ALineWithoutEndIsBounded) {
  std::string text = Lines(1, 3) + std::string(std::size_t{3} << 20, 'x') + "\n" + Lines(4, 5);
  const ReadPoints read = ReadText(text);
  EXPECT_THAT(Steps(read), ::testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(read.report.CountOf(Oddity::kOverlongLine), 1u);
  EXPECT_EQ(read.report.oddities[static_cast<std::size_t>(Oddity::kOverlongLine)].first_line, 4u);
}

// Gives lines without end and keeps none of them: what the reader holds is all there is.
class LongSource final : public ByteSource {
 public:
  explicit LongSource(std::size_t lines) : lines_(lines) {}
  std::size_t Read(char* buffer, std::size_t size) override {
    std::size_t given = 0;
    while (given < size) {
      if (used_ == line_.size()) {
        if (next_ == lines_) break;
        line_ = absl::StrFormat("step:%d loss:3.25 filler:%s\n", next_++, std::string(200, 'a'));
        used_ = 0;
      }
      const std::size_t now = std::min(size - given, line_.size() - used_);
      std::memcpy(buffer + given, line_.data() + used_, now);
      given += now;
      used_ += now;
    }
    return given;
  }

 private:
  const std::size_t lines_;
  std::size_t next_ = 0, used_ = 0;
  std::string line_;
};

TEST(BadInput, APointGoesOutBeforeTheFileHasBeenRead) {
  struct First final : LogSink {
    void OnPoint(const LogPoint& point) override { bytes_at_first = point.index == 0 ? *bytes : bytes_at_first; }
    const std::uint64_t* bytes = nullptr;
    std::uint64_t bytes_at_first = 0;
  };
  struct Counted final : ByteSource {
    explicit Counted(ByteSource* bytes_from) : source(bytes_from) {}
    std::size_t Read(char* buffer, std::size_t size) override {
      const std::size_t got = source->Read(buffer, size);
      bytes += got;
      return got;
    }
    ByteSource* source;
    std::uint64_t bytes = 0;
  };
  LongSource lines(40'000);
  Counted counted(&lines);
  First first;
  first.bytes = &counted.bytes;
  const auto report = ReadLog(&counted, &first);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->points, 40'000u);
  EXPECT_GT(counted.bytes, 8'000'000u);
  EXPECT_LT(first.bytes_at_first, 1'000'000u);
}

std::string Framed(const tensorboard::Event& event) {
  const std::string payload = event.SerializeAsString();
  std::string record;
  tensorboard::AppendLittleEndian<std::uint64_t>(payload.size(), &record);
  tensorboard::AppendLittleEndian<std::uint32_t>(tensorboard::MaskedCrc32c(record.substr(0, 8)), &record);
  record += payload;
  tensorboard::AppendLittleEndian<std::uint32_t>(tensorboard::MaskedCrc32c(payload), &record);
  return record;
}

tensorboard::Event Scalars(std::int64_t step, float loss, float grad_norm) {
  tensorboard::Event event;
  event.set_step(step);
  auto* one = event.mutable_summary()->add_value();
  one->set_tag("train/loss");
  one->set_simple_value(loss);
  auto* two = event.mutable_summary()->add_value();  // as later versions of TensorFlow write it
  two->set_tag("train/grad_norm");
  two->mutable_tensor()->set_dtype(static_cast<decltype(two->tensor().dtype())>(1));
  two->mutable_tensor()->add_float_val(grad_norm);
  return event;
}

TEST(BadInput, EventFilesGiveScalarsAndTensorsAndSurviveDamage) {
  tensorboard::Event version;
  version.set_file_version("brain.Event:2");
  std::string bytes = Framed(version);
  std::size_t third = 0, fourth = 0;
  for (int i = 0; i < 6; ++i) {
    if (i == 2) third = bytes.size();
    if (i == 3) fourth = bytes.size();
    bytes += Framed(Scalars(i * 100, 5.0f - static_cast<float>(i), 1.5f));
  }
  const ReadPoints whole = ReadText(bytes);
  EXPECT_EQ(whole.report.format, "tensorboard");
  ASSERT_THAT(Steps(whole), ::testing::ElementsAre(0, 100, 200, 300, 400, 500));
  EXPECT_EQ(*whole.points[2].loss, 3.0);
  EXPECT_EQ(*whole.points[2].grad_norm, 1.5);

  std::string flipped = bytes;
  flipped[third + 20] ^= 1;  // in the payload
  EXPECT_THAT(Steps(ReadText(flipped)), ::testing::ElementsAre(0, 100, 300, 400, 500));
  EXPECT_EQ(ReadText(flipped).report.CountOf(Oddity::kChecksum), 1u);
  std::string no_head = bytes;
  no_head[third] ^= 1;  // in the length: the next record is looked for
  EXPECT_THAT(Steps(ReadText(no_head)), ::testing::ElementsAre(0, 100, 300, 400, 500));
  const ReadPoints cut = ReadText(std::string_view(bytes).substr(0, fourth + 15));
  EXPECT_THAT(Steps(cut), ::testing::ElementsAre(0, 100, 200));
  EXPECT_EQ(cut.report.CountOf(Oddity::kCutOff), 1u);
}

}  // namespace
}  // namespace lossgauge::replay
