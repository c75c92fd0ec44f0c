// Logs that were made to be slow, to be large in memory or to lose points without a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "proto/tensorboard/record_framing.h"
#include "server/replay/json_log.h"
#include "tests/replay/read_points.h"

namespace lossgauge::replay {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

std::vector<double> Losses(const ReadPoints& read) {
  std::vector<double> losses;
  for (const LogPoint& point : read.points) losses.push_back(point.loss.value_or(NAN));
  return losses;
}

std::string Repeated(std::string_view part, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

OddityCount Of(const ReadPoints& read, Oddity oddity) { return read.report.oddities[static_cast<std::size_t>(oddity)]; }

// Each of these takes minutes where work grows with the square of a line.
TEST(LongLines, WordsInFrontOfANumberAreLookedAtOnce) {
  const std::string words = Repeated("a ", 600'000);
  const ReadPoints read = ReadText(Lines(1, 3) + words + "step 4 " + Repeated("b ", 300'000) + "| loss 2.5\n" + words + "17\n" + Lines(5, 6));
  EXPECT_THAT(Steps(read), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(*read.points[3].loss, 2.5);
}

TEST(LongLines, SpacesInFrontOfNumbersAreLookedAtOnce) {
  const ReadPoints read = ReadText(Lines(1, 3) + std::string(500'000, ' ') + Repeated("1 ", 500'000) + "\n" + Lines(4, 5));
  EXPECT_THAT(Steps(read), ElementsAre(1, 2, 3, 4, 5));
}

TEST(LongLines, NestedDictionariesAreLookedAtOnceAndOnesSideBySideAreAll) {
  std::string nested = Repeated("{'a':", 500'000);
  nested += "1" + std::string(nested.size() / 5, '}');
  const ReadPoints read = ReadText(Lines(1, 3) + nested + "\n" + Lines(4, 5));
  EXPECT_THAT(Steps(read), ElementsAre(1, 2, 3, 4, 5));

  std::string beside;
  for (int i = 1; i <= 4; ++i) absl::StrAppendFormat(&beside, "%s{'loss': %d.5, 'step': %d}\n", Repeated("{'a': 1} ", 900), i, i);
  EXPECT_THAT(Losses(ReadText(beside)), ElementsAre(1.5, 2.5, 3.5, 4.5));
  std::string within;
  for (int i = 1; i <= 4; ++i) absl::StrAppendFormat(&within, "{'all': [{'loss': %d.5, 'step': %d}]}\n", i, i);
  EXPECT_THAT(Losses(ReadText(within)), ElementsAre(1.5, 2.5, 3.5, 4.5));
}

TEST(LongLines, QuotesBehindALongCellAreLookedAtOnce) {
  const ReadPoints read = ReadText("step,loss\n1,2.5\n" + std::string(500'000, ' ') + "x" + Repeated("\"", 500'000) + "\n2,2.25\n");
  EXPECT_THAT(Losses(read), ElementsAre(2.5, 2.25));
}

TEST(LongStrings, OneOfSpacesIsNotKept) {
  struct Spaces final : ByteSource {
    std::size_t Read(char* buffer, std::size_t size) override {
      const std::size_t now = std::min(size, head.size());
      if (now > 0) {
        std::memcpy(buffer, head.data(), now);
        head.remove_prefix(now);
        return now;
      }
      std::memset(buffer, ' ', size);
      const std::size_t left = std::min(size, most - given);
      given += left;
      return left;
    }
    std::string_view head = "{\"log_history\": [{\"step\": 1, \"loss\": 2.5}, {\"step\": 2, \"loss\": 2.5, \"note\": \"";
    std::size_t given = 0;
    const std::size_t most = 64 * kMegabyte;
  };
  Spaces source;
  LogReport report;
  ReadPoints sink;
  PointMaker points(&sink, &report);
  ReadJsonDocument(&source, &points, &report);
  points.Finish();
  EXPECT_THAT(Steps(sink), ElementsAre(1));
  EXPECT_EQ(report.CountOf(Oddity::kUnreadable), 1u) << "given up in its middle: at its end it would be cut off";
  EXPECT_EQ(report.CountOf(Oddity::kCutOff), 0u);
  EXPECT_EQ(source.given, source.most);
}

TEST(LongStrings, NumbersWithoutAQuoteBetweenThemAreNoString) {
  const std::string text = "{\"shape\": [" + Repeated("1,2,", 3 * kMegabyte) + "3], \"log_history\": [{\"step\": 1, \"loss\": 2.5}, {\"step\": 2, \"loss\": 2.25}]}";
  const ReadPoints read = ReadText(text);
  EXPECT_THAT(Losses(read), ElementsAre(2.5, 2.25));
  EXPECT_EQ(read.report.CountOf(Oddity::kUnreadable), 0u);
}

TEST(Commas, AreDecimalPointsOfLossesInJsonAndInMegatronLines) {
  const ReadPoints lines = ReadText("{\"step\": \"1,000\", \"loss\": \"2,345\"}\n{\"step\": \"1,001\", \"loss\": \"2,34\"}\n");
  EXPECT_THAT(Steps(lines), ElementsAre(1000, 1001));
  EXPECT_THAT(Losses(lines), ElementsAre(2.345, 2.34));
  EXPECT_EQ(Of(lines, Oddity::kDecimalComma).count, 2u);
  EXPECT_EQ(Of(lines, Oddity::kDecimalComma).last_line, 2u);
  EXPECT_EQ(Of(lines, Oddity::kThousandsComma).count, 2u);

  const ReadPoints document = ReadText("{\"log_history\": [\n{\"step\": 1, \"loss\": \"2,345\"},\n{\"step\": 2, \"loss\": \"2,34\"}\n]}");
  EXPECT_THAT(Losses(document), ElementsAre(2.345, 2.34));
  EXPECT_EQ(Of(document, Oddity::kDecimalComma).count, 2u);
  EXPECT_EQ(Of(document, Oddity::kDecimalComma).first_line, 2u);

  const ReadPoints golden = ReadText("{\"lm loss\": {\"start_step\": 1, \"end_step\": 2, \"values\": {\"1\": \"2,345\", \"2\": \"2,34\"}}}");
  EXPECT_THAT(Losses(golden), ElementsAre(2.345, 2.34));
  EXPECT_EQ(Of(golden, Oddity::kDecimalComma).count, 2u);

  const ReadPoints dictionaries = ReadText("{'loss': '2,345', 'step': '1,000'}\n{'loss': '2,34', 'step': '1,001'}\n");
  EXPECT_THAT(Losses(dictionaries), ElementsAre(2.345, 2.34));
  EXPECT_EQ(Of(dictionaries, Oddity::kDecimalComma).count, 2u);

  std::string megatron;
  for (int i = 1; i <= 3; ++i) absl::StrAppendFormat(&megatron, " iteration %8d/     100 | consumed samples: 1,024 | lm loss: 2,34%dE+00 | grad norm: 1,5 |\n", i, i);
  const ReadPoints iterations = ReadText(megatron);
  EXPECT_THAT(Losses(iterations), ElementsAre(2.341, 2.342, 2.343));
  ASSERT_EQ(iterations.points.size(), 3u);
  EXPECT_EQ(iterations.points[0].grad_norm, 1.5);
  EXPECT_EQ(Of(iterations, Oddity::kDecimalComma).count, 3u) << "lines, not numbers";

  const ReadPoints text = ReadText("step 1,000 | loss: 2,5\nstep 1,001 | loss: 2,25\n");
  EXPECT_EQ(Of(text, Oddity::kDecimalComma).count, 2u);
  EXPECT_EQ(Of(text, Oddity::kThousandsComma).count, 2u) << "both in one line";
}

TEST(ShortRows, KeepTheirLastCellUnlessTheFileEndsInIt) {
  const ReadPoints read = ReadText("step,loss,val_loss\n1,2.5\n2,2.25\n3,2.125,2.5\n4,2.06");
  EXPECT_THAT(Losses(read), ElementsAre(2.5, 2.25, 2.125));
  EXPECT_EQ(Of(read, Oddity::kShortRow).count, 2u);
  EXPECT_EQ(Of(read, Oddity::kCutOff).count, 1u);
  EXPECT_EQ(Of(read, Oddity::kCutOff).first_line, 5u);
}

TEST(StepsOfEpochs, StayBelowTheLargestStep) {
  std::string text;
  const double largest = 9007199254740992.0;
  for (int epoch = 1; epoch <= 3; ++epoch) {
    for (int i = 1; i >= 0; --i) absl::StrAppendFormat(&text, "{\"epoch\": %d, \"step\": %.0f, \"loss\": 2.5}\n", epoch, largest - i);
    absl::StrAppendFormat(&text, "{\"epoch\": %d, \"step\": %.0f, \"eval_loss\": 2.5}\n", epoch, largest);
    absl::StrAppendFormat(&text, "{\"epoch\": %d, \"step\": 5, \"loss\": 2.5}\n", epoch + 1);
  }
  const ReadPoints read = ReadText(text);
  ASSERT_FALSE(read.points.empty());
  for (const LogPoint& point : read.points) EXPECT_LE(point.step, std::int64_t{1} << 53);
  ASSERT_FALSE(read.evaluations.empty());
  for (const LogEvaluation& evaluation : read.evaluations) EXPECT_LE(evaluation.step.value_or(0), std::int64_t{1} << 53);
  EXPECT_GT(read.report.CountOf(Oddity::kAbsurdStep), 0u);
}

TEST(Attempts, BeyondTheMostAreCountedAndSkipped) {
  std::string text;
  const int begun = static_cast<int>(kMaxAttempts) + 100;
  for (int i = 0; i < begun; ++i) absl::StrAppendFormat(&text, "{\"attempt\": \"%s\", \"step\": %d, \"loss\": 2.5}\n", i % 2 == 0 ? "a" : "b", i + 1);
  const ReadPoints read = ReadText(text);
  EXPECT_EQ(read.points.size(), kMaxAttempts + 50) << "the last one goes on";
  EXPECT_EQ(read.report.attempts, kMaxAttempts);
  EXPECT_EQ(Of(read, Oddity::kTooManyAttempts).count, 50u);
  EXPECT_EQ(Of(read, Oddity::kTooManyAttempts).first_line, kMaxAttempts + 1u);
  EXPECT_EQ(Of(read, Oddity::kTooManyAttempts).last_line, static_cast<std::uint64_t>(begun - 1));
}

TEST(Documents, EachBrokenEntryIsCountedAndThoseBehindItAreRead) {
  std::string text = "{\"best_metric\": null, \"log_history\": [\n";
  for (int i = 1; i <= 9; ++i) {
    const bool broken = i == 3 || i == 6 || i == 7;
    absl::StrAppendFormat(&text, "{\"step\": %d, \"loss\": %s},\n", i * 10, broken ? "2.x5" : absl::StrFormat("%d.5", 9 - i));
  }
  const ReadPoints read = ReadText(text + "{\"step\": 100, \"loss\": 0.25}\n], \"train_batch_size\": 4, \"stateful_callbacks\": {\"control\": {\"args\": {}}}}");
  EXPECT_THAT(Steps(read), ElementsAre(10, 20, 40, 50, 80, 90, 100));
  EXPECT_THAT(Losses(read), ElementsAre(8.5, 7.5, 5.5, 4.5, 1.5, 0.5, 0.25));
  EXPECT_EQ(Of(read, Oddity::kUnreadable).count, 3u);
  EXPECT_EQ(Of(read, Oddity::kUnreadable).first_line, 4u);
  EXPECT_EQ(Of(read, Oddity::kUnreadable).last_line, 8u);
  EXPECT_EQ(Of(read, Oddity::kCutOff).count, 0u);
  EXPECT_EQ(read.report.format, "hf_trainer_state");
}

TEST(Documents, SeveralInOneFileAreAllRead) {
  std::string text;
  for (int i = 1; i <= 3; ++i) absl::StrAppendFormat(&text, "{\n  \"step\": %d,\n  \"loss\": %d.5\n}\n", i, 5 - i);
  const ReadPoints read = ReadText(text);
  EXPECT_THAT(Steps(read), ElementsAre(1, 2, 3));
  EXPECT_THAT(Losses(read), ElementsAre(4.5, 3.5, 2.5));
  EXPECT_EQ(Of(read, Oddity::kUnreadable).count, 0u);
  EXPECT_EQ(read.points[1].line, 5u);
}

TEST(Evaluations, BeforeTheFirstLossAreCounted) {
  std::string text;
  for (int i = 1; i <= 2000; ++i) absl::StrAppendFormat(&text, "step:%d val_loss:%.2f\n", i, 5 - 0.001 * i);
  const ReadPoints read = ReadText(text + Lines(2001, 2010));
  EXPECT_EQ(read.report.evaluations, 2000u);
  ASSERT_EQ(read.evaluations.size(), 2000u);
  for (std::size_t i = 0; i < 2000; ++i) EXPECT_EQ(read.evaluations[i].step, static_cast<std::int64_t>(i + 1));
  EXPECT_EQ(read.points.size(), 10u);
}

TEST(Checkpoints, BeforeTheFirstLossAreCounted) {
  std::string text;
  for (int i = 1; i <= 2000; ++i) absl::StrAppendFormat(&text, "saving checkpoint at iteration %7d to /ckpt in torch format\n", i);
  const ReadPoints read = ReadText(text + Lines(2001, 2010));
  EXPECT_EQ(read.report.checkpoints, 2000u);
  ASSERT_EQ(read.checkpoints.size(), 2000u);
  for (std::size_t i = 0; i < 2000; ++i) EXPECT_EQ(read.checkpoints[i].step, static_cast<std::int64_t>(i + 1));
}

TEST(LongLines, ANumberThatIsCutAtTheLongestLineIsNoValue) {
  // The cut goes through the loss: 2.123 of 2.123456.
  std::string line = "step:4 filler:" + std::string(kMegabyte, 'x');
  const std::string loss = " loss:2.123456";
  line.replace(kMegabyte - loss.size() + 3, std::string::npos, loss);
  const ReadPoints read = ReadText(Lines(1, 3) + line + "\n" + Lines(5, 6));
  EXPECT_THAT(Steps(read), ElementsAre(1, 2, 3, 5, 6));
  EXPECT_EQ(read.report.CountOf(Oddity::kOverlongLine), 1u);
}

std::string Head(std::uint64_t size) {
  std::string head;
  tensorboard::AppendLittleEndian<std::uint64_t>(size, &head);
  tensorboard::AppendLittleEndian<std::uint32_t>(tensorboard::MaskedCrc32c(head), &head);
  return head;
}

TEST(EventFiles, RecordsThatAreTooLargeAreCountedAndSoIsTheEndInOne) {
  const std::size_t large = 17 * kMegabyte;
  const ReadPoints skipped = ReadText(Head(4) + std::string(8, '\0') + Head(large) + std::string(large + 4, '\0'));
  EXPECT_EQ(Of(skipped, Oddity::kOverlongRecord).count, 1u);
  EXPECT_EQ(Of(skipped, Oddity::kOverlongRecord).first_line, 2u);
  EXPECT_EQ(Of(skipped, Oddity::kCutOff).count, 0u);
  const ReadPoints bogus = ReadText(Head(4) + std::string(8, '\0') + Head(~std::uint64_t{0} - 64) + std::string(1000, '\0'));
  EXPECT_EQ(Of(bogus, Oddity::kOverlongRecord).count, 1u);
  EXPECT_EQ(Of(bogus, Oddity::kCutOff).count, 1u);
}

TEST(Reading, EndsWhenNobodyWantsMore) {
  struct Enough final : LogSink {
    void OnPoint(const LogPoint&) override { ++points; }
    bool WantsMore() const override { return points < 1000; }
    std::uint64_t points = 0;
  };
  const std::string text = Lines(1, 400'000);
  Enough enough;
  const auto source = MakeMemorySource(text);
  const auto report = ReadLog(source.get(), &enough);
  ASSERT_TRUE(report.ok());
  EXPECT_GE(enough.points, 1000u);
  EXPECT_LT(report->bytes, text.size() / 2);
}

TEST(Reading, AnErrorOfTheDiskLeavesWhatWasReadBeforeIt) {
  struct Failing final : ByteSource {
    std::size_t Read(char* buffer, std::size_t size) override {
      const std::size_t now = std::min(size, text.size() - used);
      std::memcpy(buffer, text.data() + used, now);
      used += now;
      return now;
    }
    std::string error() const override { return used == text.size() ? "Input/output error" : ""; }
    std::string text = Lines(1, 100) + "step:101 lo";
    std::size_t used = 0;
  };
  Failing failing;
  ReadPoints sink;
  const auto report = ReadLog(&failing, &sink);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->points, 100u);
  EXPECT_EQ(sink.points.size(), 100u);
  EXPECT_EQ(report->read_error, "reading failed: Input/output error");
}

}  // namespace
}  // namespace lossgauge::replay
