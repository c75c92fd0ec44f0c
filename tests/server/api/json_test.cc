#include "server/api/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lossgauge/v1/lossgauge.pb.h"

namespace lossgauge::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Json, WhatWasNotMeasuredIsMissingAndWhatWasZeroIsZero) {
  v1::Step step;
  step.set_loss_nats(0);
  const std::string json = *ToJson(step);
  EXPECT_THAT(json, HasSubstr(R"("lossNats":0)"));
  EXPECT_THAT(json, HasSubstr(R"("nonfiniteRows":"0")"));
  EXPECT_THAT(json, Not(HasSubstr("gradNorm")));
}

TEST(Json, ANonfiniteValueIsAWord) {
  v1::Step step;
  step.set_loss_nats(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(*ToJson(step), HasSubstr(R"("lossNats":"NaN")"));
}

TEST(Json, ABodyThatIsNotTheMessageIsRefusedByName) {
  v1::ReportActionRequest request;
  for (const char* body : {"", "[]", "{", "nonsense", R"({"run": 1})", R"({"no_such_field": 1})", "{\"run\": \"\xff\"}"}) {
    const absl::Status status = FromJson(body, &request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(status.message()), HasSubstr("body:")) << body;
  }
  EXPECT_TRUE(FromJson(R"({"run": "r", "action": "RESTART", "actor": "slurm"})", &request).ok());
  EXPECT_EQ(request.action(), v1::RESTART);
}

TEST(Json, DeepNestingIsRefusedAndHarmsNothing) {
  v1::ReportActionRequest request;
  EXPECT_FALSE(FromJson(std::string(60'000, '['), &request).ok());
  std::string objects;
  for (int i = 0; i < 10'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(FromJson(objects, &request).ok());
}

TEST(Json, AnErrorIsJsonWhateverItsText) {
  EXPECT_EQ(ErrorJson(absl::NotFoundError("no \"run\"\n\xff")),
            "{\"error\":{\"code\":5,\"status\":\"NOT_FOUND\",\"message\":\"no \\\"run\\\"\\n\xef\xbf\xbd\"}}");
}

}  // namespace
}  // namespace lossgauge::api
