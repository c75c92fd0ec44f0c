// Closing a gauge while a device still works for it, and beside captures.
#include "tests/device/device_gauge_test.h"

namespace lossgauge {
namespace {

using testing::Each;
using testing::Field;
using testing::SizeIs;

class Close : public DeviceGaugeTest {
 protected:
  // A graph of one step: loss and publish.
  void Capture(cudaGraphExec_t* executable) {
    cudaGraph_t graph;
    ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    Loss();
    Publish();
    ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
    ASSERT_CUDA(cudaGraphInstantiate(executable, graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  // Of the gauge's ring, also when it is closed.
  std::vector<lg_step_record> Records(const std::string& path) { return RingFile(path).Records<lg_step_record>(); }
  void CloseGauge() {
    ASSERT_LG(lg_gauge_close(gauge_, "done"));
    gauge_ = nullptr;
  }
};

// Steps that the device has still to end when the job closes its gauge are published all the same: a short job must not lose its last steps.
TEST_F(Close, StepsUnderWayAreStillPublished) {
  constexpr int kReplays = 100;
  ASSERT_LT(kReplays + 1, static_cast<int>(LG_STEP_SLOT_COUNT));
  Loss();
  Publish();
  cudaGraphExec_t step;
  ASSERT_NO_FATAL_FAILURE(Capture(&step));
  const std::string path = State(gauge_).steps_path;
  for (int i = 0; i < kReplays; ++i) ASSERT_CUDA(cudaGraphLaunch(step, stream_));
  CloseGauge();
  const std::vector<lg_step_record> steps = Records(path);
  ASSERT_THAT(steps, SizeIs(kReplays + 1));
  EXPECT_THAT(steps, Each(Field(&lg_step_record::unmasked_tokens, 5u)));
  EXPECT_EQ(steps.back().step, kReplays);
  EXPECT_EQ(steps.back().total_steps, static_cast<std::uint64_t>(kReplays) + 1);

  // The graph goes on giving losses; nobody counts them.
  ASSERT_CUDA(cudaMemset(loss_(), 0xff, 4));
  for (int i = 0; i < 3; ++i) ASSERT_CUDA(cudaGraphLaunch(step, stream_));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  float loss = 0;
  ASSERT_CUDA(cudaMemcpy(&loss, loss_(), 4, cudaMemcpyDeviceToHost));
  EXPECT_NEAR(loss, std::log(1000.), 1e-6);
  EXPECT_THAT(Records(path), SizeIs(kReplays + 1));
  ASSERT_CUDA(cudaGraphExecDestroy(step));
}

// A gauge that meets its device while another stream is being captured must not cost that capture.
TEST_F(Close, AGaugeMeetsItsDeviceBesideACapture) {
  cudaStream_t other;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  lg_cross_entropy_args args = Args();
  args.gauge = nullptr;
  ASSERT_LG(lg_cross_entropy(&args));  // the device is known from here on; the gauge is not
  ASSERT_CUDA(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
  ASSERT_CUDA(cudaMemsetAsync(scalar_(), 0, 8, other));
  Loss();
  Publish();
  cudaGraph_t graph;
  ASSERT_CUDA(cudaStreamEndCapture(other, &graph));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(other));
  EXPECT_THAT(Steps(), SizeIs(1));
}

}  // namespace
}  // namespace lossgauge
