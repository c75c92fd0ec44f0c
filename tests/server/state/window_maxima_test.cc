#include "server/state/window_maxima.h"

#include <gtest/gtest.h>

#include <limits>

namespace lossgauge::state {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

WindowMaxima Loss(double value) {
  WindowMaxima values;
  values.loss_nats = value;
  return values;
}

TEST(WindowTracker, KeepsAMaximumForTheRunningAndSixFullWindows) {
  WindowTracker tracker;
  tracker.Add(1005 * kSecond, Loss(9));
  for (int t = 1005; t < 1070; ++t) EXPECT_EQ(tracker.Maxima(t * kSecond).loss_nats, 9) << t;
  EXPECT_FALSE(tracker.Maxima(1070 * kSecond).loss_nats);
}

TEST(WindowTracker, LookingChangesNothing) {
  WindowTracker tracker;
  tracker.Add(1005 * kSecond, Loss(3));
  tracker.Add(1016 * kSecond, Loss(2));
  EXPECT_EQ(tracker.Maxima(1017 * kSecond).loss_nats, 3);
  EXPECT_EQ(tracker.Maxima(1017 * kSecond).loss_nats, 3);
}

TEST(WindowTracker, AMaximumBelowZeroIsNotZero) {
  WindowTracker tracker;
  WindowMaxima values;
  values.log_z_max_nats = -4;
  tracker.Add(1000 * kSecond, values);
  EXPECT_EQ(tracker.Maxima(1000 * kSecond).log_z_max_nats, -4);
  EXPECT_FALSE(tracker.Maxima(1000 * kSecond).grad_norm);
}

TEST(WindowTracker, WhatIsNotFiniteTakesNoPart) {
  WindowTracker tracker;
  tracker.Add(1000 * kSecond, Loss(std::numeric_limits<double>::quiet_NaN()));
  tracker.Add(1000 * kSecond, Loss(std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(tracker.Maxima(1000 * kSecond).loss_nats);
  tracker.Add(1000 * kSecond, Loss(1));
  EXPECT_EQ(tracker.Maxima(1000 * kSecond).loss_nats, 1);
}

}  // namespace
}  // namespace lossgauge::state
