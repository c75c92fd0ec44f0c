// Algorithms that are equally fast must not change places from process to process: their bits differ.
#include "kernels/cuda/candidate_times.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace lossgauge::cuda {
namespace {

CandidateTimes Of(std::initializer_list<std::initializer_list<float>> candidates) {
  CandidateTimes times(candidates.size());
  std::size_t i = 0;
  for (const auto& each : candidates) {
    for (const float ms : each) times.Add(i, ms);
    ++i;
  }
  return times;
}

TEST(CandidateTimes, TheFirstThatIsAsGoodAsTheFastestIsKept) {
  EXPECT_EQ(Of({{1.0f}, {0.985f}, {0.99f}}).Choice(), 0) << "1.5 % are noise";
  EXPECT_EQ(Of({{1.03f}, {1.01f}, {1.0f}}).Choice(), 1) << "3 % are not";
  EXPECT_EQ(Of({{2.0f}, {1.5f}, {1.0f}}).Choice(), 2);
  EXPECT_EQ(Of({{1.0f}, {2.0f}}).Choice(), 0);
}

TEST(CandidateTimes, MediansAreCompared) {
  EXPECT_EQ(Of({{1.0f, 9.0f, 1.0f}, {1.2f, 1.2f, 0.1f}}).Choice(), 0) << "means or minima would have it otherwise";
}

TEST(CandidateTimes, WhatCannotRunIsNotKept) {
  CandidateTimes times = Of({{0.5f}, {1.0f}, {}});
  times.LeaveOut(0);
  EXPECT_FALSE(times.IsUsable(0));
  EXPECT_EQ(times.Choice(), 1);
  times.LeaveOut(1);
  EXPECT_EQ(times.Choice(), -1) << "one that never ran";
}

TEST(CandidateTimes, TheSlowLeaveAndTheOthersStay) {
  CandidateTimes times = Of({{1.3f}, {1.15f}, {1.0f}, {}});
  times.LeaveOutSlow();
  EXPECT_FALSE(times.IsUsable(0));
  EXPECT_TRUE(times.IsUsable(1));
  EXPECT_TRUE(times.IsUsable(2));
  EXPECT_FALSE(times.IsUsable(3));
  times.Add(1, 0.5f), times.Add(1, 0.5f);
  EXPECT_EQ(times.Choice(), 1) << "later rounds count";
}

}  // namespace
}  // namespace lossgauge::cuda
