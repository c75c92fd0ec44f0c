// Times lg_linear_cross_entropy on a GPU against the three plain products of the same shapes over all rows (bf16 operands, grad_weight in fp32), in turn, in
// blocks under sustained load whose first third is dropped: the card's clocks depend on what it does. Ratios of medians within a round; the median round counts.
//
//   linear_bench [ROUNDS [PART OF A SHAPE'S NAME]...]
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/device/bench_check.h"
#include "tests/device/plain_products.h"

namespace {

using lossgauge::PlainProduct;

__global__ void Fill(__nv_bfloat16* p, size_t n, float scale, unsigned long long seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    unsigned long long x = (i + seed) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    p[i] = __float2bfloat16((static_cast<float>(x >> 40) * 5.9604645e-8f - 0.5f) * scale);
  }
}

template <class T>
T* Allocate(size_t elements) {
  T* made = nullptr;
  CHECK(cudaMalloc(&made, elements * sizeof(T)));
  return made;
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Median milliseconds of `run`, repeated for half a second.
double Block(const std::function<void()>& run, double about_ms) {
  const int repetitions = std::max(6, static_cast<int>(500 / about_ms));
  std::vector<cudaEvent_t> events(static_cast<size_t>(repetitions) + 1);
  for (auto& event : events) CHECK(cudaEventCreate(&event));
  CHECK(cudaEventRecord(events[0]));
  for (int i = 0; i < repetitions; ++i) {
    run();
    CHECK(cudaEventRecord(events[static_cast<size_t>(i) + 1]));
  }
  CHECK(cudaEventSynchronize(events.back()));
  std::vector<double> times;
  for (int i = repetitions / 3; i < repetitions; ++i) {
    float ms;
    CHECK(cudaEventElapsedTime(&ms, events[static_cast<size_t>(i)], events[static_cast<size_t>(i) + 1]));
    times.push_back(ms);
  }
  for (auto& event : events) CHECK(cudaEventDestroy(event));
  return Median(times);
}

struct Shape {
  int rows, width, vocab;
  double ignored, target;  // of the issue, ratio to the plain products over all rows
  bool tell;               // the caller knows the number of unmasked rows
  long long chunk_rows;    // 0 = the library's choice
  bool round_head;         // grad_weight in bf16
};

std::string NameOf(const Shape& s) {
  char name[128];
  std::snprintf(name, sizeof name, "%d, %d, %d%s%s%s", s.rows, s.width, s.vocab, s.ignored > 0 ? (s.tell ? ", 25 % ignored" : ", 25 % ignored, not told") : "",
                s.chunk_rows > 0 ? (", chunk " + std::to_string(s.chunk_rows)).c_str() : "", s.round_head ? ", grad_weight bf16" : "");
  return name;
}

void Run(const Shape& s, int rounds, lg_gauge* gauge) {
  const auto rows = static_cast<size_t>(s.rows), width = static_cast<size_t>(s.width), vocab = static_cast<size_t>(s.vocab);
  auto* hidden = Allocate<__nv_bfloat16>(rows * width);
  auto* weight = Allocate<__nv_bfloat16>(vocab * width);
  auto* grad_hidden = Allocate<__nv_bfloat16>(rows * width);
  auto* grad_weight = Allocate<float>(vocab * width);
  auto* logits = Allocate<__nv_bfloat16>(rows * vocab);
  auto* targets_on_device = Allocate<long long>(rows);
  Fill<<<1056, 256>>>(hidden, rows * width, 2.f, 1);
  Fill<<<1056, 256>>>(weight, vocab * width, 0.06f, 2);
  std::vector<long long> targets(rows);
  long long unmasked = 0;
  unsigned long long state = 88172645463325252ull;
  for (auto& target : targets) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const bool ignore = static_cast<double>(state >> 11) / 9007199254740992.0 < s.ignored;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    target = ignore ? -100 : static_cast<long long>(state % vocab);
    unmasked += !ignore;
  }
  CHECK(cudaMemcpy(targets_on_device, targets.data(), rows * 8, cudaMemcpyHostToDevice));

  const PlainProduct product_logits(CUBLAS_OP_T, CUBLAS_OP_N, s.vocab, s.rows, s.width, false, weight, hidden, logits);
  const PlainProduct product_hidden(CUBLAS_OP_N, CUBLAS_OP_N, s.width, s.rows, s.vocab, false, weight, logits, grad_hidden);
  const PlainProduct product_weight(CUBLAS_OP_N, CUBLAS_OP_T, s.width, s.vocab, s.rows, true, hidden, logits, grad_weight);
  const auto plain = [&] {
    product_logits.Run();
    product_hidden.Run();
    product_weight.Run();
  };

  lg_linear_cross_entropy_args args;
  lg_linear_cross_entropy_args_init(&args);
  args.hidden = hidden;
  args.dtype = LG_BF16;
  args.rows = s.rows;
  args.width = s.width;
  args.weight = weight;
  args.columns = s.vocab;
  args.grad_hidden = grad_hidden;
  args.grad_weight = grad_weight;
  args.head_grad_dtype = s.round_head ? LG_BF16 : LG_FP32;
  args.chunk_rows = s.chunk_rows;
  if (s.tell) args.most_unmasked_rows = unmasked;
  args.loss.targets = targets_on_device;
  args.loss.gauge = gauge;
  auto* loss = Allocate<float>(1);
  args.loss.loss = loss;
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  CHECK_LG(lg_linear_cross_entropy_plan(&args, &plan));
  CHECK_LG(lg_linear_cross_entropy_prepare(&args));
  const auto ours = [&] {
    CHECK_LG(lg_linear_cross_entropy(&args));
    CHECK_LG(lg_gauge_publish(gauge, nullptr));
  };
  const double about = std::max(0.5, Block(plain, 200));
  std::vector<double> plain_ms, our_ms, ratios;
  for (int round = 0; round < rounds; ++round) {
    plain_ms.push_back(Block(plain, about));
    our_ms.push_back(Block(ours, about));
    ratios.push_back(our_ms.back() / plain_ms.back());
  }
  std::sort(ratios.begin(), ratios.end());
  float value;
  CHECK(cudaMemcpy(&value, loss, 4, cudaMemcpyDeviceToHost));
  std::printf("| %s | %.2f | %.2f | %.3f (%.3f to %.3f) | %s | %lld x %lld | %.3f | %.4f |\n", NameOf(s).c_str(), Median(plain_ms), Median(our_ms), ratios[ratios.size() / 2],
              ratios.front(), ratios.back(), s.target > 0 ? std::to_string(s.target).substr(0, 4).c_str() : "", static_cast<long long>(plan.chunks),
              static_cast<long long>(plan.chunk_rows), static_cast<double>(plan.workspace_bytes) / 1e9, static_cast<double>(value));
  std::fflush(stdout);
  for (void* memory : {static_cast<void*>(hidden), static_cast<void*>(weight), static_cast<void*>(grad_hidden), static_cast<void*>(grad_weight), static_cast<void*>(logits),
                       static_cast<void*>(targets_on_device), static_cast<void*>(loss)}) {
    CHECK(cudaFree(memory));
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 3;
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  options.run = "linear_bench";
  options.attempt = "1";
  options.world_size = 1;
  options.ring_dir = "/dev/shm/lossgauge-linear-bench";
  lg_gauge* gauge = nullptr;
  CHECK_LG(lg_gauge_open(&options, &gauge));
  const Shape shapes[] = {
      {8192, 4096, 128256, 0, 1.04, false, 0, false},   {8192, 2048, 32000, 0, 1.08, false, 0, false},    {4096, 8192, 128256, 0, 1.05, false, 0, false},
      {8192, 4096, 128256, .25, 0.80, true, 0, false},  {8192, 4096, 128256, .25, 0, false, 0, false},    {8192, 4096, 128256, 0, 0, false, 1024, false},
      {8192, 4096, 128256, 0, 0, false, 4096, false},   {8192, 4096, 128256, 0, 0, false, 0, true},       {4096, 8192, 128256, 0, 0, false, 2048, false},
  };
  std::printf("| N, D, V | three products, ms | linear cross-entropy, ms | ratio (rounds) | target | chunks | extra memory, GB | loss |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Shape& shape : shapes) {
    bool wanted = count <= 2;
    for (int i = 2; i < count; ++i) wanted |= NameOf(shape).find(arguments[i]) != std::string::npos;
    if (wanted) Run(shape, rounds, gauge);
  }
  CHECK_LG(lg_gauge_close(gauge, nullptr));
}
