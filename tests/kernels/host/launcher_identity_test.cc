#include "kernels/host/launcher_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "kernels/host/error.h"

namespace lossgauge {
namespace {

using ::testing::HasSubstr;

std::map<std::string, std::string> variables;
const char* Lookup(const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : found->second.c_str();
}

class Launcher : public ::testing::Test {
 protected:
  void SetUp() override {
    variables.clear();
    lg_gauge_options_init(&options_);
    options_.run = "run";
  }
  int Resolve() {
    identity_ = {};
    return ResolveIdentity(options_, &Lookup, 1700000000123456789, &identity_);
  }

  lg_gauge_options options_;
  LauncherIdentity identity_;
};

TEST_F(Launcher, OfASingleProcessNeedsNothingAndNamesTheAttemptByItsStart) {
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.attempt, "2023-11-14T22:13:20.123456789Z");
  EXPECT_EQ(identity_.layout.world_size, 1u);
  EXPECT_EQ(identity_.layout.rank, 0u);
  EXPECT_EQ(identity_.layout.dp.size, 1u);
}

TEST_F(Launcher, TorchrunGivesRankWorldAndAttempt) {
  variables = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"TORCHELASTIC_RUN_ID", "job-17"}, {"TORCHELASTIC_RESTART_COUNT", "2"}};
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.attempt, "job-17-2");
  EXPECT_EQ(identity_.layout.rank, 3u);
  EXPECT_EQ(identity_.layout.world_size, 8u);
  EXPECT_EQ(identity_.layout.dp.size, 8u);
  EXPECT_EQ(identity_.layout.dp.index, 3u);
}

TEST_F(Launcher, TorchrunsDefaultRunIdIdentifiesNoAttempt) {
  variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}};
  EXPECT_EQ(Resolve(), LG_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("attempt"));
}

TEST_F(Launcher, SlurmGivesRankWorldAndAttempt) {
  variables = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "4711"}};
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.attempt, "4711-0");
  variables["SLURM_RESTART_COUNT"] = "3";
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.attempt, "4711-3");
  EXPECT_EQ(identity_.layout.rank, 5u);
}

TEST_F(Launcher, ARestartByTorchrunInsideASlurmJobIsAnotherAttempt) {
  variables = {{"RANK", "0"},          {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "1"},
               {"SLURM_JOB_ID", "4711"}};
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.attempt, "4711-0-1");
}

TEST_F(Launcher, OptionsRuleOverTheEnvironment) {
  variables = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOSSGAUGE_ATTEMPT", "env"}, {"LOSSGAUGE_RUN", "env"}};
  options_.rank = 1;
  options_.world_size = 2;
  options_.attempt = "given";
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.run, "run");
  EXPECT_EQ(identity_.attempt, "given");
  EXPECT_EQ(identity_.layout.rank, 1u);
  options_.run = nullptr;
  options_.attempt = nullptr;
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.run, "env");
  EXPECT_EQ(identity_.attempt, "env");
}

TEST_F(Launcher, WithoutRankInALargerWorldIsAnErrorThatNamesTheVariables) {
  variables = {{"WORLD_SIZE", "4"}, {"LOSSGAUGE_ATTEMPT", "1"}};
  EXPECT_EQ(Resolve(), LG_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("RANK"));
  EXPECT_THAT(LastError(), HasSubstr("SLURM_PROCID"));
}

TEST_F(Launcher, WithoutAttemptInALargerWorldIsAnErrorThatSaysWhatToDo) {
  variables = {{"WORLD_SIZE", "4"}, {"RANK", "0"}};
  EXPECT_EQ(Resolve(), LG_FAILED_PRECONDITION);
  EXPECT_THAT(LastError(), HasSubstr("Broadcast"));
}

TEST_F(Launcher, NumbersThatAreNoneAreNamed) {
  for (const char* text : {"x", "-1", "1.5", "99999999999", "3 "}) {
    variables = {{"RANK", text}, {"WORLD_SIZE", "4"}, {"LOSSGAUGE_ATTEMPT", "1"}};
    EXPECT_EQ(Resolve(), LG_FAILED_PRECONDITION) << text;
    EXPECT_THAT(LastError(), HasSubstr("RANK")) << text;
  }
  variables = {{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"LOSSGAUGE_ATTEMPT", "1"}};
  EXPECT_EQ(Resolve(), LG_FAILED_PRECONDITION);
}

TEST_F(Launcher, LongIdsOfOneBeginningStayApart) {
  const std::string beginning(200, 'j');
  variables = {{"LOSSGAUGE_ATTEMPT", beginning + "1"}};
  ASSERT_EQ(Resolve(), LG_OK);
  const std::string first = identity_.attempt;
  EXPECT_EQ(first.size(), LG_ATTEMPT_BYTES - 1);
  variables = {{"LOSSGAUGE_ATTEMPT", beginning + "2"}};
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_NE(identity_.attempt, first);
  const std::string given = beginning + "1";
  options_.attempt = given.c_str();
  ASSERT_EQ(Resolve(), LG_OK) << LastError();
  EXPECT_EQ(identity_.attempt, first) << "the same name, whoever gives it";
}

TEST_F(Launcher, ARunNameThatIsTooLongIsCutAndStaysItself) {
  const std::string longest(255, 'r'), longer(4096, 'r');
  options_.run = longest.c_str();
  EXPECT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.run, longest);
  options_.run = longer.c_str();
  ASSERT_EQ(Resolve(), LG_OK);
  const std::string first = identity_.run;
  EXPECT_EQ(first.size(), 255u);
  const std::string other = longer + "2";
  options_.run = other.c_str();
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_NE(identity_.run, first);
}

TEST_F(Launcher, ARunWithoutANameIsRefused) {
  options_.run = "";
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
  options_.run = nullptr;
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("LOSSGAUGE_RUN"));
}

TEST_F(Launcher, DataParallelSizeFollowsFromTheOtherAxes) {
  options_.attempt = "1";
  options_.world_size = 16;
  options_.rank = 0;
  options_.tp = {4, 1};
  options_.pp = {2, 0};
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.layout.dp.size, 2u);
  options_.dp = {2, 1};
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.layout.dp.index, 1u);
  options_.dp = {4, 1};
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
  options_.dp = {0, 0};
  options_.tp = {3, 0};
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
  options_.tp = {4, 4};
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
  EXPECT_THAT(LastError(), HasSubstr("tp.index"));
}

TEST_F(Launcher, ShardColumnsDefaultToWhatIsLeftAndMustFit) {
  options_.vocab_size = 1000;
  options_.shard_offset = 600;
  ASSERT_EQ(Resolve(), LG_OK);
  EXPECT_EQ(identity_.layout.shard_columns, 400);
  options_.shard_columns = 401;
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
  options_.shard_columns = 0;
  options_.shard_offset = 1001;
  EXPECT_EQ(Resolve(), LG_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace lossgauge
