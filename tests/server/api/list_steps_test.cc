// Steps in pages, by range, and from the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/api/api_fixture.h"

namespace lossgauge::api {
namespace {

using testing::MakeFullRun;
using testing::MakeRun;
using testing::MakeStep;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ListStepsTest : public ApiTest {
 protected:
  // Reads all pages; the sequences in order.
  std::vector<std::uint64_t> ReadAll(v1::ListStepsRequest request, int* pages = nullptr) {
    std::vector<std::uint64_t> sequences;
    for (int page = 1; page < 1000; ++page) {
      const auto answer = api_.ListSteps(request);
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (!answer.ok()) break;
      for (const v1::Step& step : answer->steps()) sequences.push_back(step.sequence());
      if (pages != nullptr) *pages = page;
      if (answer->next_page_token().empty()) break;
      request.set_page_token(answer->next_page_token());
    }
    return sequences;
  }
  static v1::ListStepsRequest Request() {
    v1::ListStepsRequest request;
    request.set_run("run");
    return request;
  }
};

TEST_F(ListStepsTest, PagesHoldEveryStepOnceWhereverItIsKept) {
  Publish(MakeRun("run", 1401, 1500));
  for (std::uint64_t s = 1; s <= 1450; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
  for (const int size : {7, 499, 500, 501, 1000, 1499, 1500, 1501, 10'000}) {
    v1::ListStepsRequest request = Request();
    request.set_page_size(size);
    int pages = 0;
    const std::vector<std::uint64_t> sequences = ReadAll(request, &pages);
    ASSERT_EQ(sequences.size(), 1500u) << size;
    for (std::size_t i = 0; i < sequences.size(); ++i) EXPECT_EQ(sequences[i], i + 1);
    EXPECT_EQ(pages, (1500 + size - 1) / size);
  }
}

TEST_F(ListStepsTest, ARangeOfStepsOfAnAttempt) {
  Publish(MakeRun("run", 1, 40));
  v1::ListStepsRequest request = Request();
  request.set_first_step(10);
  request.set_last_step(12);
  EXPECT_THAT(ReadAll(request), ElementsAre(11, 12, 13));
  request.set_page_size(1);
  EXPECT_THAT(ReadAll(request), ElementsAre(11, 12, 13));
  request.set_attempt("another");
  EXPECT_THAT(ReadAll(request), ElementsAre());
}

TEST_F(ListStepsTest, TheTailIsTheNewestInOrder) {
  Publish(MakeRun("run", 37, 40));
  for (std::uint64_t s = 1; s <= 38; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
  v1::ListStepsRequest request = Request();
  request.set_tail(3);
  EXPECT_THAT(ReadAll(request), ElementsAre(38, 39, 40));
  EXPECT_EQ(history_->reads, 0);
  request.set_tail(6);
  EXPECT_THAT(ReadAll(request), ElementsAre(35, 36, 37, 38, 39, 40));
}

TEST_F(ListStepsTest, RanksComeOnlyWhenAskedFor) {
  Publish(MakeFullRun("run"));
  v1::ListStepsRequest request = Request();
  request.set_tail(1);
  EXPECT_EQ(api_.ListSteps(request)->steps(0).rank_steps_size(), 0);
  request.set_include_ranks(true);
  ASSERT_EQ(api_.ListSteps(request)->steps(0).rank_steps_size(), 2);
  EXPECT_EQ(api_.ListSteps(request)->steps(0).rank_steps(0).lost_before(), 7u);
  EXPECT_FALSE(api_.ListSteps(request)->steps(0).rank_steps(1).has_loss_nats());
}

TEST_F(ListStepsTest, APageIsNeverLargerThanAClientTakes) {
  auto run = MakeRun("run", 1, 0);
  auto chunk = std::make_shared<state::StepChunk>();
  for (std::uint64_t s = 1; s <= 20; ++s) {
    state::StepSummary step = MakeStep(s, static_cast<std::int64_t>(s), 2);
    for (std::uint32_t rank = 0; rank < 16'384; ++rank) step.rank_steps.push_back({rank, 2.0, 1.0, 3.0, 1000, 0, 0});
    chunk->push_back(std::make_shared<const state::StepSummary>(step));
  }
  run->recent_steps = {chunk};
  run->next_sequence = 21;
  Publish(run);
  v1::ListStepsRequest request = Request();
  request.set_include_ranks(true);
  std::uint64_t steps = 0;
  do {
    const auto answer = api_.ListSteps(request);
    ASSERT_TRUE(answer.ok());
    EXPECT_LT(answer->ByteSizeLong(), std::size_t{4} << 20);
    ASSERT_GT(answer->steps_size(), 0);
    steps += static_cast<std::uint64_t>(answer->steps_size());
    request.set_page_token(answer->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(steps, 20u);
}

TEST_F(ListStepsTest, EachFieldThatIsWrongIsNamedWithARemedy) {
  Publish(MakeRun("run", 1, 4));
  const auto refusal = [&](const std::function<void(v1::ListStepsRequest&)>& change) {
    v1::ListStepsRequest request = Request();
    change(request);
    const auto answer = api_.ListSteps(request);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
    return Message(answer.status());
  };
  EXPECT_THAT(refusal([](auto& r) { r.set_page_size(-1); }), HasSubstr("page_size: -1 is out of range; give 1 to 10000"));
  EXPECT_THAT(refusal([](auto& r) { r.set_page_size(10'001); }), HasSubstr("page_size: 10001"));
  EXPECT_THAT(refusal([](auto& r) { r.set_tail(-5); }), HasSubstr("tail: -5"));
  EXPECT_THAT(refusal([](auto& r) { r.set_tail(10'001); }), HasSubstr("tail: 10001"));
  EXPECT_THAT(refusal([](auto& r) { r.set_first_step(9), r.set_last_step(3); }), HasSubstr("first_step: 9 is beyond last_step 3"));
  EXPECT_THAT(refusal([](auto& r) { r.set_page_token("x"); }), HasSubstr("page_token:"));
  EXPECT_THAT(refusal([](auto& r) { r.set_attempt(std::string(5000, 'a')); }), HasSubstr("attempt: 5000 bytes"));
}

TEST_F(ListStepsTest, ATokenHoldsOnlyForItsOwnQuery) {
  Publish(MakeRun("run", 1, 40));
  v1::ListStepsRequest request = Request();
  request.set_page_size(5);
  const std::string token = api_.ListSteps(request)->next_page_token();
  ASSERT_FALSE(token.empty());
  request.set_page_token(token);
  request.set_page_size(6);  // another size is fine
  EXPECT_TRUE(api_.ListSteps(request).ok());
  request.set_first_step(3);
  EXPECT_EQ(api_.ListSteps(request).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lossgauge::api
