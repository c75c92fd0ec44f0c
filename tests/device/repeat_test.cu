// What needs a GPU and many launches: same bits in every run, with another stream busy; totals of four streams; a captured graph whose data change.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <vector>

#include "tests/device/other_work.cuh"

namespace {

#define ASSERT_CUDA(x) ASSERT_EQ((x), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_LG(x) ASSERT_EQ((x), LG_OK) << lg_last_error()

__global__ void Fill(__nv_bfloat16* p, size_t n, unsigned seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    unsigned long long x = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    p[i] = __float2bfloat16(static_cast<float>(x >> 40) * (16.f / 16777216.f) - 8.f);
  }
}

struct Buffers {
  size_t rows, vocab;
  __nv_bfloat16 *logits = nullptr, *grad = nullptr;
  int* targets = nullptr;
  float *losses = nullptr, *loss = nullptr;
  Buffers(size_t r, size_t v, unsigned seed) : rows(r), vocab(v) {
    EXPECT_EQ(cudaMalloc(&logits, r * v * 2), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&grad, r * v * 2), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&targets, r * 4), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&losses, r * 4), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&loss, 4), cudaSuccess);
    std::vector<int> t(r);
    for (size_t i = 0; i < r; ++i) t[i] = i % 5 == 3 ? -100 : static_cast<int>(i * 2654435761u % v);
    EXPECT_EQ(cudaMemcpy(targets, t.data(), r * 4, cudaMemcpyHostToDevice), cudaSuccess);
    Refill(seed, nullptr);
  }
  ~Buffers() {
    for (void* p : {static_cast<void*>(logits), static_cast<void*>(grad), static_cast<void*>(targets), static_cast<void*>(losses), static_cast<void*>(loss)})
      cudaFree(p);
  }
  void Refill(unsigned seed, cudaStream_t stream) { Fill<<<512, 256, 0, stream>>>(logits, rows * vocab, seed); }
  lg_cross_entropy_args Args(lg_gauge* gauge, cudaStream_t stream) const {
    lg_cross_entropy_args args;
    lg_cross_entropy_args_init(&args);
    args.logits = logits;
    args.logits_dtype = LG_BF16;
    args.rows = static_cast<int64_t>(rows);
    args.columns = static_cast<int64_t>(vocab);
    args.targets = targets;
    args.target_dtype = LG_INT32;
    args.losses = losses;
    args.loss = loss;
    args.grad_logits = grad;
    args.gauge = gauge;
    args.stream = stream;
    return args;
  }
  std::vector<unsigned char> Results() const {
    std::vector<unsigned char> all(rows * vocab * 2 + rows * 4 + 4);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(all.data(), grad, rows * vocab * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(all.data() + rows * vocab * 2, losses, rows * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(all.data() + rows * vocab * 2 + rows * 4, loss, 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return all;
  }
};

constexpr size_t kWidths[] = {1000, 4096, 16384, 32000, 50257, 128256, 200000, 400000};

TEST(Repeat, TwentyRunsHaveTheSameBitsWithAnotherStreamBusy) {
  cudaStream_t busy, stream;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const size_t vocab : kWidths) {
    Buffers buffers(601, vocab, 7);
    ASSERT_CUDA(cudaDeviceSynchronize());
    std::vector<unsigned char> first;
    for (int run = 0; run < 20; ++run) {
      ASSERT_CUDA(cudaMemset(buffers.grad, 0xff, buffers.rows * vocab * 2));
      ASSERT_CUDA(cudaDeviceSynchronize());
      if (run % 2 == 1) lossgauge::LaunchOtherWork(40 + run, 60 << 10, 400000, busy);
      const lg_cross_entropy_args args = buffers.Args(nullptr, stream);
      ASSERT_LG(lg_cross_entropy(&args));
      const auto results = buffers.Results();
      if (run == 0) first = results;
      ASSERT_TRUE(first == results) << "vocabulary " << vocab << ", run " << run;
    }
  }
  cudaStreamDestroy(busy);
  cudaStreamDestroy(stream);
}

TEST(Repeat, AReplayedGraphSeesTheDataOfItsTime) {
  cudaStream_t stream;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const size_t vocab : kWidths) {
    Buffers buffers(133, vocab, 1);
    const lg_cross_entropy_args args = buffers.Args(nullptr, stream);
    ASSERT_CUDA(cudaDeviceSynchronize());
    ASSERT_LG(lg_cross_entropy(&args));  // the first call of a device cannot be captured
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ASSERT_LG(lg_cross_entropy(&args));
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (unsigned seed = 2; seed < 6; ++seed) {
      buffers.Refill(seed, stream);
      ASSERT_LG(lg_cross_entropy(&args));
      const auto direct = buffers.Results();
      ASSERT_CUDA(cudaMemset(buffers.grad, 0xff, buffers.rows * vocab * 2));
      ASSERT_CUDA(cudaDeviceSynchronize());
      ASSERT_CUDA(cudaGraphLaunch(executable, stream));
      ASSERT_TRUE(direct == buffers.Results()) << "vocabulary " << vocab << ", seed " << seed;
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
