// How many rows a chunk has: pure arithmetic over sizes, budgets and what the caller asks for.
#include "kernels/host/linear_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/host/linear_arguments.h"

namespace lossgauge {
namespace {

using testing::HasSubstr;

class LinearPlan : public testing::Test {
 protected:
  int Plan() { return PlanLinear(args_, memory_, limits_, "f", &plan_); }

  lg_linear_cross_entropy_args args_ = DefaultLinearArguments();
  LinearMemory memory_{1000, 24, 10000, 500};
  LinearLimits limits_{100, 40, 8};
  lg_linear_plan plan_{};
};

TEST_F(LinearPlan, TheDefaultIsCutIntoEqualChunks) {
  ASSERT_EQ(Plan(), LG_OK) << lg_last_error();
  EXPECT_EQ(plan_.chunks, 3);
  EXPECT_EQ(plan_.chunk_rows, 40) << "34 rows would do, and 40 is the next multiple of 8";
  EXPECT_EQ(plan_.logits_bytes, 40000);
  EXPECT_EQ(plan_.workspace_bytes, 10000 + 500 + 40 * 1024);
}

TEST_F(LinearPlan, OneChunkMoreIsCutIntoEqualChunksToo) {
  limits_ = {700, 235, 25};  // three chunks of 234 rows would do, but 250 are too many
  ASSERT_EQ(Plan(), LG_OK) << lg_last_error();
  EXPECT_EQ(plan_.chunks, 4);
  EXPECT_EQ(plan_.chunk_rows, 175) << "225 would leave a last chunk of 25";
}

TEST_F(LinearPlan, AnyNumberOfChunksIsFoundAtOnce) {
  limits_ = {std::int64_t{1} << 40, 33, 32};  // a billion chunks of 32 to 33 rows, of which the granule rules all but the last out
  ASSERT_EQ(Plan(), LG_OK) << lg_last_error();
  EXPECT_EQ(plan_.chunk_rows, 32);
  EXPECT_EQ(plan_.chunks, std::int64_t{1} << 35);
}

TEST_F(LinearPlan, OneChunkNeedsNoSumOverChunks) {
  limits_.default_rows = 100;
  ASSERT_EQ(Plan(), LG_OK);
  EXPECT_EQ(plan_.chunks, 1);
  EXPECT_EQ(plan_.workspace_bytes, 10000 + 100 * 1024);
  args_.memory_budget = plan_.workspace_bytes;
  limits_.default_rows = 1;
  ASSERT_EQ(Plan(), LG_OK);
  EXPECT_EQ(plan_.chunks, 1) << "all rows fit just so";
  --args_.memory_budget;
  ASSERT_EQ(Plan(), LG_OK);
  EXPECT_EQ(plan_.chunks, 2);
}

TEST_F(LinearPlan, AChunkThatIsAskedForIsTaken) {
  for (const std::int64_t rows : {1, 33, 100, 5000}) {
    args_.chunk_rows = rows;
    ASSERT_EQ(Plan(), LG_OK);
    EXPECT_EQ(plan_.chunk_rows, rows < 100 ? rows : 100);
  }
}

TEST_F(LinearPlan, NoBudgetIsOverstepped) {
  for (std::int64_t budget = 11524; budget < 130000; budget += 97) {
    args_.memory_budget = budget;
    ASSERT_EQ(Plan(), LG_OK) << lg_last_error();
    EXPECT_LE(plan_.workspace_bytes, budget);
    EXPECT_GE(plan_.chunk_rows * plan_.chunks, 100);
    EXPECT_LT(plan_.chunk_rows * (plan_.chunks - 1), 100);
  }
}

TEST_F(LinearPlan, ABudgetBelowOneRowIsRefusedWithWhatWouldDo) {
  args_.memory_budget = 11523;
  EXPECT_EQ(Plan(), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("memory_budget: expected at least 11524 bytes"));
  EXPECT_EQ(plan_.chunk_rows, 0) << "written before it was refused";
  args_.memory_budget = 20000;
  args_.chunk_rows = 50;
  EXPECT_EQ(Plan(), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("memory_budget: expected at least 61700 bytes for chunk_rows = 50"));
}

TEST_F(LinearPlan, AWorkspaceThatIsTooSmallIsRefused) {
  alignas(256) unsigned char workspace[256];
  args_.workspace = workspace;
  args_.workspace_bytes = 51459;
  EXPECT_EQ(Plan(), LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("workspace_bytes: expected at least 51460"));
  ++args_.workspace_bytes;
  EXPECT_EQ(Plan(), LG_OK);
}

TEST_F(LinearPlan, NoRowsStillHaveAWorkspace) {
  limits_.rows = 0;
  ASSERT_EQ(Plan(), LG_OK);
  EXPECT_EQ(plan_.chunks, 0);
  EXPECT_EQ(plan_.chunk_rows, 1);
}

TEST_F(LinearPlan, SizesBeyondAnyMemoryDoNotWrapAround) {
  memory_.logits_row = INT64_MAX / 2;
  args_.memory_budget = INT64_MAX;
  args_.chunk_rows = 100;
  EXPECT_EQ(Plan(), LG_OK) << lg_last_error();
  EXPECT_GT(plan_.workspace_bytes, INT64_MAX / 4);
  args_.memory_budget = INT64_MAX / 8;
  EXPECT_EQ(Plan(), LG_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace lossgauge
