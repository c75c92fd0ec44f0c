// Verdicts in pages, newest first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/api/api_fixture.h"

namespace lossgauge::api {
namespace {

using testing::kNow;
using testing::MakeRun;
using testing::MakeVerdict;
using ::testing::ElementsAre;

class ListVerdictsTest : public ApiTest {
 protected:
  ListVerdictsTest() {
    Publish(MakeRun("run", 1, 4));
    for (int i = 0; i < 10; ++i) Add(i);
  }
  void Add(int i) { history_->verdicts.insert(history_->verdicts.begin(), MakeVerdict(state::Action::kWatch, std::to_string(i), kNow + i)); }
  std::vector<std::string> Codes(const v1::ListVerdictsResponse& answer) {
    std::vector<std::string> codes;
    for (const v1::Verdict& verdict : answer.verdicts()) codes.push_back(verdict.reason_codes(0));
    return codes;
  }
};

TEST_F(ListVerdictsTest, NewestFirstInPages) {
  v1::ListVerdictsRequest request;
  request.set_run("run");
  request.set_page_size(4);
  auto answer = api_.ListVerdicts(request);
  EXPECT_THAT(Codes(*answer), ElementsAre("9", "8", "7", "6"));
  request.set_page_token(answer->next_page_token());
  answer = api_.ListVerdicts(request);
  EXPECT_THAT(Codes(*answer), ElementsAre("5", "4", "3", "2"));
  request.set_page_token(answer->next_page_token());
  answer = api_.ListVerdicts(request);
  EXPECT_THAT(Codes(*answer), ElementsAre("1", "0"));
  EXPECT_EQ(answer->next_page_token(), "");
}

TEST_F(ListVerdictsTest, WhatComesInBetweenTwoPagesNeitherRepeatsNorHidesOne) {
  for (const int arrivals : {1, 3, 4, 5, 6, 7, 20}) {
    history_->verdicts.clear();
    for (int i = 0; i < 10; ++i) Add(i);
    v1::ListVerdictsRequest request;
    request.set_run("run");
    request.set_page_size(4);
    auto answer = api_.ListVerdicts(request);
    for (int i = 0; i < arrivals; ++i) Add(10 + i);
    request.set_page_token(answer->next_page_token());
    answer = api_.ListVerdicts(request);
    EXPECT_THAT(Codes(*answer), ElementsAre("5", "4", "3", "2")) << arrivals;
    request.set_page_token(answer->next_page_token());
    EXPECT_THAT(Codes(*api_.ListVerdicts(request)), ElementsAre("1", "0")) << arrivals;
  }
}

}  // namespace
}  // namespace lossgauge::api
