#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/cpp/examples/train_text/faults.h"
#include "client/cpp/examples/train_text/flags.h"

namespace lossgauge::train_text {
namespace {

std::string ErrorOf(const std::vector<std::string>& arguments) {
  Options options;
  std::string error;
  return ParseFlags(arguments, &options, &error) == ParseResult::kError ? error : "no error";
}

TEST(Flags, AreReadInBothSpellings) {
  Options options;
  std::string error;
  ASSERT_EQ(ParseFlags({"--steps=7", "--run", "a b=c", "--learning_rate=1e-3", "--no_telemetry", "--fault=spike"}, &options, &error), ParseResult::kRun)
      << error;
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.run, "a b=c");
  EXPECT_EQ(options.learning_rate, 1e-3);
  EXPECT_TRUE(options.no_telemetry);
  EXPECT_EQ(options.fault, "spike");
}

TEST(Flags, NameTheFlagThatIsWrongWithWhatItTakesAndWhatItGot) {
  EXPECT_EQ(ErrorOf({"--step=7"}), "unknown argument \"--step=7\"; --help lists the flags");
  EXPECT_EQ(ErrorOf({"text.txt"}), "unknown argument \"text.txt\"; --help lists the flags");
  EXPECT_EQ(ErrorOf({"--steps"}), "--steps needs a value (steps)");
  EXPECT_EQ(ErrorOf({"--steps=ten"}), "--steps takes a whole number from 1 to 1000000000, got \"ten\"");
  EXPECT_EQ(ErrorOf({"--steps=0"}), "--steps takes a whole number from 1 to 1000000000, got \"0\"");
  EXPECT_EQ(ErrorOf({"--steps=99999999999999999999"}), "--steps takes a whole number from 1 to 1000000000, got \"99999999999999999999\"");
  EXPECT_EQ(ErrorOf({"--steps=7x"}), "--steps takes a whole number from 1 to 1000000000, got \"7x\"");
  EXPECT_EQ(ErrorOf({"--z_loss=nan"}), "--z_loss takes a number from 0 to 1000, got \"nan\"");
  EXPECT_EQ(ErrorOf({"--label_smoothing=1"}), "--label_smoothing takes a number from 0 to 0.999999, got \"1\"");
  EXPECT_EQ(ErrorOf({"--no_telemetry=maybe"}), "--no_telemetry takes true or false, got \"maybe\"");
  EXPECT_EQ(ErrorOf({"--activation=relu"}), "--activation takes one of gelu, tanh, got \"relu\"");
  EXPECT_EQ(ErrorOf({"--vocab_size=100"}), "--vocab_size takes a whole number from 257 to 8192, got \"100\"");
}

TEST(Flags, AreCheckedTogether) {
  EXPECT_EQ(ErrorOf({"--batch=10", "--ranks=2", "--micro_batches=2"}), "--batch=10 must be divisible by --ranks * --micro_batches = 4");
  EXPECT_EQ(ErrorOf({"--checkpoint_every=5"}), "--checkpoint_every needs --checkpoint_dir");
  EXPECT_EQ(ErrorOf({"--resume=latest"}), "--resume=latest needs --checkpoint_dir");
  EXPECT_EQ(ErrorOf({"--fault_rank=2", "--ranks=2"}), "--fault_rank=2 but there are only --ranks=2");
  EXPECT_NE(ErrorOf({"--fault=mean_of_means"}), "no error");
  EXPECT_NE(ErrorOf({"--then_fault=local_report"}), "no error");
  EXPECT_EQ(ErrorOf({"--fault=z_loss_sign", "--z_loss=1e-3"}), "no error");
  EXPECT_NE(ErrorOf({"--fault=z_loss_sign", "--z_loss=0"}), "no error");
  EXPECT_NE(ErrorOf({"--then_fault=z_loss_sign", "--z_loss=1e-3", "--linear_head"}), "no error");
  EXPECT_NE(ErrorOf({"--fault=mean_of_means", "--ranks=2", "--then_fault=z_loss_sign", "--z_loss=1e-3"}), "no error");
}

TEST(Help, ListsEveryFlagWithDefaultAndUnitAndEveryFault) {
  const std::string help = HelpText();
  EXPECT_NE(help.find("--steps=2000  [steps]"), std::string::npos);
  EXPECT_NE(help.find("--z_loss=0.0001  [1]"), std::string::npos);
  for (const std::string& fault : FaultNames()) EXPECT_NE(help.find("\n  " + fault + " "), std::string::npos) << fault;
}

}  // namespace
}  // namespace lossgauge::train_text
