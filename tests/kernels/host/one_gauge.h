// A gauge with a ring of its own, closed with its test.
#ifndef LOSSGAUGE_TESTS_KERNELS_HOST_ONE_GAUGE_H_
#define LOSSGAUGE_TESTS_KERNELS_HOST_ONE_GAUGE_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/host/gauge.h"
#include "tests/kernels/host/gauge_fixture.h"

namespace lossgauge {

class GaugeTest : public ::testing::Test {
 protected:
  void Open() { Open(Options(directory_.path())); }
  void Open(const lg_gauge_options& options) {
    ASSERT_EQ(lg_gauge_open(&options, &gauge_), LG_OK) << lg_last_error();
    path_ = State(gauge_).steps_path;
  }
  void Close() {
    lg_gauge_close(gauge_, "done");
    gauge_ = nullptr;
  }
  void TearDown() override { Close(); }
  void Observe(const lg_observation& observation) {
    ASSERT_EQ(lg_gauge_observe(gauge_, &observation), LG_OK) << lg_last_error();
  }
  void Publish() { ASSERT_EQ(lg_gauge_publish(gauge_, nullptr), LG_OK) << lg_last_error(); }
  std::vector<lg_step_record> Steps() { return RingFile(path_).Records<lg_step_record>(); }
  std::vector<lg_event_record> Events() { return RingFile(EventsPath(path_)).Records<lg_event_record>(); }

  ScratchDirectory directory_;
  lg_gauge* gauge_ = nullptr;
  std::string path_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_KERNELS_HOST_ONE_GAUGE_H_
