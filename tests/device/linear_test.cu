// Linear cross-entropy on a device: the same bits with other work beside it, in a replayed graph whose data and masks change, over micro-batches and streams.
#include "tests/device/linear_tensors.cuh"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "tests/device/device_gauge_test.h"
#include "tests/device/other_work.cuh"

namespace lossgauge {
namespace {

// A record without what differs between steps that did the same: their numbers, times and totals.
std::vector<unsigned char> Signals(lg_step_record record) {
  record.sequence = 0;
  record.step = record.boot_ns = record.wall_ns = 0;
  std::vector<unsigned char> bytes(offsetof(lg_step_record, total_steps));
  std::memcpy(bytes.data(), &record, bytes.size());
  return bytes;
}

class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& calls) : stream_(stream) {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    calls();
    CHECK(cudaStreamEndCapture(stream, &graph_));
    CHECK(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void Launch() const { CHECK(cudaGraphLaunch(executable_, stream_)); }
  int Nodes(cudaGraphNodeType type) const {
    std::size_t count = 0;
    CHECK(cudaGraphGetNodes(graph_, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CHECK(cudaGraphGetNodes(graph_, nodes.data(), &count));
    int found = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType its;
      CHECK(cudaGraphNodeGetType(node, &its));
      found += its == type;
    }
    return found;
  }

 private:
  const cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

bool HasConditionalNodes() {
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12040 && CUDART_VERSION >= 13000;
}

class Linear : public DeviceGaugeTest {
 protected:
  // A direct call, then a replay of the same call: the same outputs and the same record, in bits.
  void ExpectReplayLikeDirect(const LinearTensors& head, const lg_linear_cross_entropy_args& args, const Graph& graph) {
    head.Clear();
    ASSERT_LG(lg_linear_cross_entropy(&args));
    Publish();
    const auto direct = head.Results(), direct_signals = Signals(Steps().back());
    head.Clear();
    graph.Launch();
    Publish();
    ASSERT_TRUE(direct == head.Results());
    ASSERT_TRUE(direct_signals == Signals(Steps().back()));
  }
};

constexpr struct {
  std::int64_t rows, width, vocab, chunk;
} kShapes[] = {{601, 256, 1000, 128}, {500, 520, 32000, 192}, {257, 64, 50257, 100}};
// Masks of a call with chunks of `chunk` rows, and what they are for.
struct MaskCase {
  const char* what;
  std::function<bool(std::int64_t row, std::int64_t chunk)> is_masked;
};
const MaskCase kMasks[] = {{"none", [](std::int64_t, std::int64_t) { return false; }},
                           {"every third", [](std::int64_t row, std::int64_t) { return row % 3 == 1; }},
                           {"one chunk just full", [](std::int64_t row, std::int64_t chunk) { return row >= chunk; }},
                           {"one row more", [](std::int64_t row, std::int64_t chunk) { return row < 40 || row >= 41 + chunk; }},
                           {"all", [](std::int64_t, std::int64_t) { return true; }},
                           {"all but one", [](std::int64_t row, std::int64_t) { return row != 77; }}};

TEST_F(Linear, TwentyRunsHaveTheSameBitsWithAnotherStreamBusy) {
  cudaStream_t busy;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  for (const auto& shape : kShapes) {
    const LinearTensors head(shape.rows, shape.width, shape.vocab, 7);
    head.Mask([](std::int64_t row) { return row % 5 == 3; });
    lg_linear_cross_entropy_args args = head.Args(stream_, shape.chunk);
    args.head_grad_signal = 1;
    args.loss.gauge = gauge_;
    std::vector<unsigned char> first, first_signals;
    for (int run = 0; run < 20; ++run) {
      head.Clear();
      if (run % 2 == 1) LaunchOtherWork(40 + run, 60 << 10, 400000, busy);
      ASSERT_LG(lg_linear_cross_entropy(&args));
      Publish();
      const auto results = head.Results(), signals = Signals(Steps().back());
      if (run == 0) first = results, first_signals = signals;
      ASSERT_TRUE(first == results) << "vocabulary " << shape.vocab << ", run " << run;
      ASSERT_TRUE(first_signals == signals) << "vocabulary " << shape.vocab << ", run " << run;
    }
  }
  ASSERT_CUDA(cudaStreamDestroy(busy));
}

TEST_F(Linear, AReplayedGraphTakesDataAndMaskOfItsTime) {
  for (const auto& shape : kShapes) {
    const LinearTensors head(shape.rows, shape.width, shape.vocab, 1);
    for (const int head_type : {LG_FP32, LG_BF16}) {
      lg_linear_cross_entropy_args args = head.Args(stream_, shape.chunk);
      args.head_grad_dtype = head_type;
      args.head_grad_signal = 1;
      args.loss.gauge = gauge_;
      args.loss.z_loss_weight = 1e-4;
      ASSERT_LG(lg_linear_cross_entropy_prepare(&args));
      ASSERT_LG(lg_linear_cross_entropy(&args));  // makes the gauge's side of the device, which cannot be captured
      const Graph graph(stream_, [&] { ASSERT_LG(lg_linear_cross_entropy(&args)); });
      Publish();
      const std::int64_t chunks = (shape.rows + shape.chunk - 1) / shape.chunk;
      if (HasConditionalNodes()) EXPECT_EQ(graph.Nodes(cudaGraphNodeTypeConditional), chunks - 1);
      unsigned seed = 2;
      for (const MaskCase& mask : kMasks) {
        SCOPED_TRACE(testing::Message() << "vocabulary " << shape.vocab << ", head " << head_type << ", masked: " << mask.what);
        head.Refill(seed++);
        head.Mask([&](std::int64_t row) { return mask.is_masked(row, shape.chunk); });
        ASSERT_NO_FATAL_FAILURE(ExpectReplayLikeDirect(head, args, graph));
      }
    }
  }
}

TEST_F(Linear, AReplayLeavesOutChunksWithoutRows) {
  if (!HasConditionalNodes()) GTEST_SKIP() << "no conditional nodes";
  constexpr std::int64_t kRows = 300, kChunk = 100, kWidth = 64, kVocab = 1000;
  const LinearTensors head(kRows, kWidth, kVocab, 3);
  lg_linear_cross_entropy_args args = head.Args(stream_, kChunk);
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  ASSERT_LG(lg_linear_cross_entropy_plan(&args, &plan));
  const DeviceArray<unsigned char> workspace(static_cast<std::size_t>(plan.workspace_bytes));
  args.workspace = workspace;
  args.workspace_bytes = plan.workspace_bytes;
  ASSERT_LG(lg_linear_cross_entropy_prepare(&args));
  const Graph graph(stream_, [&] { ASSERT_LG(lg_linear_cross_entropy(&args)); });
  // What stays in the workspace, which begins with a chunk's logits, is the gradient of the last chunk that ran: of one without rows, zeros.
  const auto last_gradient_is_zero = [&] {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const std::vector<unsigned char> all = workspace.Read();
    return std::accumulate(all.begin(), all.begin() + kVocab * 2, 0) == 0;
  };
  head.Mask([](std::int64_t row) { return row >= kChunk; });
  ASSERT_LG(lg_linear_cross_entropy(&args));
  EXPECT_TRUE(last_gradient_is_zero()) << "a direct call cannot know, and runs every chunk";
  graph.Launch();
  EXPECT_FALSE(last_gradient_is_zero()) << "a chunk without rows ran";
  head.Mask([](std::int64_t row) { return row > kChunk; });
  const float before = head.loss.Read()[0];
  graph.Launch();
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_NE(head.loss.Read()[0], before) << "the row that came to the second chunk was left out";
}

TEST_F(Linear, ACallThatWouldAllocateIsRefusedInACapture) {
  const LinearTensors head(64, 32, 500, 5);
  head.Clear();
  const auto untouched = head.Results();
  cudaStream_t fresh;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&fresh, cudaStreamNonBlocking));
  lg_linear_cross_entropy_args args = head.Args(stream_, 32);
  ASSERT_LG(lg_linear_cross_entropy(&args));
  head.Clear();
  args.loss.stream = fresh;
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(fresh, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(lg_linear_cross_entropy(&args), LG_FAILED_PRECONDITION);
  EXPECT_THAT(lg_last_error(), testing::HasSubstr("lg_linear_cross_entropy_prepare"));
  ASSERT_CUDA(cudaStreamEndCapture(fresh, &graph)) << "the capture was lost";
  EXPECT_TRUE(untouched == head.Results());
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(fresh));
}

TEST_F(Linear, MicroBatchesAddToOneStep) {
  constexpr std::int64_t kRows = 384, kWidth = 128, kVocab = 5000;
  const LinearTensors head(kRows, kWidth, kVocab, 11);
  head.Mask([](std::int64_t row) { return row % 7 == 2 || (row >= 128 && row < 200); });
  lg_linear_cross_entropy_args args = head.Args(stream_, 96);
  args.head_grad_signal = 1;
  args.loss.gauge = gauge_;
  args.loss.denominator = 300;
  ASSERT_LG(lg_linear_cross_entropy(&args));
  Publish();
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  const std::vector<float> whole = head.grad_weight.Read(), whole_bias = head.grad_bias.Read(), losses = head.losses.Read();
  head.Clear();
  std::int64_t begin = 0;
  for (const std::int64_t rows : {100, 28, 256}) {
    lg_linear_cross_entropy_args part = head.Part(args, begin, rows);
    part.loss.position_base = begin;
    ASSERT_LG(lg_linear_cross_entropy(&part));
    begin += rows;
  }
  Publish();
  const std::vector<lg_step_record> steps = Steps();
  ASSERT_EQ(steps.size(), 2u);
  const std::vector<float> added = head.grad_weight.Read(), added_bias = head.grad_bias.Read();
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(added[i], whole[i], 1e-6) << i;
  for (std::size_t i = 0; i < whole_bias.size(); ++i) ASSERT_NEAR(added_bias[i], whole_bias[i], 1e-6) << i;
  const std::vector<float> part_losses = head.losses.Read();
  for (std::size_t i = 0; i < losses.size(); ++i) ASSERT_NEAR(part_losses[i], losses[i], 0.02f) << i;  // bf16 logits, perhaps by another algorithm
  EXPECT_EQ(steps[1].micro_batches, 3u);
  EXPECT_EQ(steps[1].tokens, static_cast<std::uint64_t>(kRows));
  EXPECT_EQ(steps[1].unmasked_tokens, steps[0].unmasked_tokens);
  EXPECT_EQ(steps[1].mask_fingerprint, steps[0].mask_fingerprint);
  const auto near = [](lg_fixed128 a, lg_fixed128 b) { EXPECT_NEAR(lg_fixed128_to_double(a), lg_fixed128_to_double(b), 1e-3 * lg_fixed128_to_double(b)); };
  near(steps[1].nll_sum, steps[0].nll_sum);
  near(steps[1].hidden_grad_sq_sum, steps[0].hidden_grad_sq_sum);
  near(steps[1].head_grad_sq_sum, steps[0].head_grad_sq_sum);
}

TEST_F(Linear, SeveralStreamsAtOnce) {
  constexpr int kStreams = 4, kTurns = 10;
  std::vector<std::unique_ptr<LinearTensors>> heads;
  std::vector<cudaStream_t> streams(kStreams);
  std::vector<std::vector<unsigned char>> alone;
  std::uint64_t unmasked = 0;
  for (int i = 0; i < kStreams; ++i) {
    heads.push_back(std::make_unique<LinearTensors>(200 + 50 * i, 128, 3000 + 1000 * i, 20 + static_cast<unsigned>(i)));
    heads.back()->Mask([&](std::int64_t row) { return row % (2 + i) == 0; });
    for (std::int64_t row = 0; row < heads.back()->rows; ++row) unmasked += row % (2 + i) != 0;
    ASSERT_CUDA(cudaStreamCreateWithFlags(&streams[static_cast<std::size_t>(i)], cudaStreamNonBlocking));
    const lg_linear_cross_entropy_args args = heads.back()->Args(streams[static_cast<std::size_t>(i)], 64);
    ASSERT_LG(lg_linear_cross_entropy(&args));
    alone.push_back(heads.back()->Results());
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const auto& head : heads) head->Clear();
    for (std::size_t i = 0; i < kStreams; ++i) {
      lg_linear_cross_entropy_args args = heads[i]->Args(streams[i], 64);
      args.loss.gauge = gauge_;
      ASSERT_LG(lg_linear_cross_entropy(&args));
    }
    Publish();
    for (std::size_t i = 0; i < kStreams; ++i) ASSERT_TRUE(alone[i] == heads[i]->Results()) << "stream " << i << ", turn " << turn;
  }
  for (const lg_step_record& step : Steps()) {
    EXPECT_EQ(step.micro_batches, static_cast<std::uint64_t>(kStreams));
    EXPECT_EQ(step.unmasked_tokens, unmasked);
  }
  for (const cudaStream_t stream : streams) ASSERT_CUDA(cudaStreamDestroy(stream));
}

// Without a workspace of their own both use the stream's: launches of one must not come between those of the other, nor may it be freed between them because
// the other needs more.
TEST_F(Linear, TwoThreadsOnOneStream) {
  constexpr int kTurns = 12, kCalls = 8;
  const LinearTensors small(300, 128, 3000, 31), large(520, 256, 9000, 32);
  const LinearTensors* const heads[] = {&small, &large};
  std::vector<unsigned char> alone[2];
  std::uint64_t unmasked = 0;
  for (int i = 0; i < 2; ++i) {
    heads[i]->Mask([i](std::int64_t row) { return row % (3 + i) == 0; });
    for (std::int64_t row = 0; row < heads[i]->rows; ++row) unmasked += row % (3 + i) != 0;
    heads[i]->Clear();
    const lg_linear_cross_entropy_args args = heads[i]->Args(stream_, 32);
    ASSERT_LG(lg_linear_cross_entropy(&args));
    alone[i] = heads[i]->Results();
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    cudaStream_t fresh;  // its workspace begins small, or large
    ASSERT_CUDA(cudaStreamCreateWithFlags(&fresh, cudaStreamNonBlocking));
    for (const LinearTensors* head : heads) head->Clear();
    std::atomic<int> ready{0};
    int codes[2] = {};
    const auto call = [&](int i) {
      lg_linear_cross_entropy_args args = heads[i]->Args(fresh, 32);
      args.loss.gauge = gauge_;
      ++ready;
      while (ready.load() < 2) {
      }
      for (int n = 0; n < kCalls && codes[i] == LG_OK; ++n) codes[i] = lg_linear_cross_entropy(&args);
    };
    std::thread other(call, 1);
    call(0);
    other.join();
    ASSERT_EQ(codes[0], LG_OK);
    ASSERT_EQ(codes[1], LG_OK);
    Publish();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(alone[i] == heads[i]->Results()) << "head " << i << ", turn " << turn;
    ASSERT_CUDA(cudaStreamDestroy(fresh));
  }
  const std::vector<lg_step_record> steps = Steps();
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kTurns));
  for (const lg_step_record& step : steps) {
    EXPECT_EQ(step.micro_batches, 2u * kCalls);
    EXPECT_EQ(step.unmasked_tokens, unmasked * kCalls);
    EXPECT_EQ(step.nonfinite_rows, 0u);
  }
}

TEST_F(Linear, AToldNumberOfRowsHoldsInAReplayToo) {
  constexpr std::int64_t kRows = 400, kWidth = 64, kVocab = 2000, kChunk = 100, kTold = 230;
  const LinearTensors head(kRows, kWidth, kVocab, 41);
  lg_linear_cross_entropy_args args = head.Args(stream_, kChunk);
  args.most_unmasked_rows = kTold;
  args.head_grad_signal = 1;
  args.loss.gauge = gauge_;
  ASSERT_LG(lg_linear_cross_entropy_prepare(&args));
  ASSERT_LG(lg_linear_cross_entropy(&args));
  const Graph graph(stream_, [&] { ASSERT_LG(lg_linear_cross_entropy(&args)); });
  Publish();
  for (const std::int64_t unmasked : {230, 200, 100, 99, 1, 0, 231, 260, 400}) {
    SCOPED_TRACE(testing::Message() << unmasked << " unmasked rows");
    head.Mask([unmasked](std::int64_t row) { return row >= unmasked; });
    ASSERT_NO_FATAL_FAILURE(ExpectReplayLikeDirect(head, args, graph));
    const lg_step_record step = Steps().back();
    const std::int64_t room = std::min(unmasked, kTold);
    EXPECT_EQ(step.unmasked_tokens, static_cast<std::uint64_t>(unmasked));
    EXPECT_EQ(step.finite_tokens, static_cast<std::uint64_t>(room));
    EXPECT_EQ(step.nonfinite_rows, static_cast<std::uint64_t>(unmasked - room));
    EXPECT_EQ(std::isnan(head.loss.Read()[0]), unmasked > kTold);
    const std::vector<float> losses = head.losses.Read();
    for (std::int64_t row = 0; row < kRows; ++row) {
      const float loss = losses[static_cast<std::size_t>(row)];
      ASSERT_TRUE(row < room ? loss > 1.f : row < unmasked ? std::isnan(loss) : loss == 0.f) << "row " << row << ": " << loss;
    }
  }
}

// A trainer's gradients often are parts of one buffer, at no particular boundary.
TEST_F(Linear, AGradientThatIsAViewIsPreparedAndRight) {
  constexpr std::int64_t kRows = 384, kWidth = 128, kVocab = 4000;
  const LinearTensors head(kRows, kWidth, kVocab, 51);
  lg_linear_cross_entropy_args args = head.Args(stream_, 128);
  ASSERT_LG(lg_linear_cross_entropy(&args));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  const std::vector<float> whole = head.grad_weight.Read();
  const DeviceArray<float> buffer(static_cast<std::size_t>(kVocab * kWidth) + 128);
  for (const std::size_t offset : {1, 4, 17, 64}) {
    SCOPED_TRACE(offset);
    buffer.Set(0xff);
    args.grad_weight = buffer + offset;
    ASSERT_LG(lg_linear_cross_entropy_prepare(&args));
    for (const float x : buffer.Read()) ASSERT_TRUE(std::isnan(x)) << "written while it was prepared";
    ASSERT_LG(lg_linear_cross_entropy(&args));
    ASSERT_CUDA(cudaStreamSynchronize(stream_));
    const std::vector<float> first = buffer.Read();
    for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(first[offset + i], whole[i], 2e-5f) << i;  // bf16 logits, perhaps by another algorithm
    for (std::size_t i = 0; i < first.size(); ++i) ASSERT_EQ(std::isnan(first[i]), i < offset || i >= offset + whole.size()) << i;
    ASSERT_LG(lg_linear_cross_entropy_prepare(&args));
    ASSERT_LG(lg_linear_cross_entropy(&args));
    ASSERT_CUDA(cudaStreamSynchronize(stream_));
    ASSERT_EQ(std::memcmp(first.data(), buffer.Read().data(), buffer.bytes()), 0) << "to prepare a shape once more changed its bits";
  }
}

}  // namespace
}  // namespace lossgauge
