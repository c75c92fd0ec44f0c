// Times lg_cross_entropy on a GPU against the memory limit of the same run: floor = each logit read and written once (4 bytes in 16 bits) over the bandwidth
// of a large device-to-device copy. Before each repetition the logits are copied anew (they are overwritten by their gradient, and the L2 forgets them) and a
// spinning kernel lets the host run ahead. Medians; the same launches with and without a gauge, interleaved.
//
//   cross_entropy_bench [REPETITIONS [PART OF A SHAPE'S NAME]...]
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/device/bench_check.h"

namespace {

__device__ unsigned Mix(unsigned long long x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<unsigned>((x ^ (x >> 31)) >> 16);
}
template <class T>
__global__ void FillNormal(T* p, size_t n, unsigned long long seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n / 2; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const float u = (Mix(2 * i + seed) + 1.0f) * 2.3283064e-10f, w = Mix(2 * i + 1 + seed) * 2.3283064e-10f;
    const float r = sqrtf(-2.f * logf(fmaxf(u, 1e-10f)));
    float s, c;
    sincospif(2.f * w, &s, &c);
    p[2 * i] = static_cast<T>(r * c);
    p[2 * i + 1] = static_cast<T>(r * s);
  }
}
__global__ void Spin(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

double Quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
}

struct Bench {
  void *source, *work;
  int dtype = -1;  // of what the source holds
  long long* targets;
  float* losses;
  size_t capacity;  // bytes of source and work
  cudaEvent_t begin, end;
  lg_gauge* gauge = nullptr;
  double bandwidth;  // bytes per ms, read plus written

  template <class T>
  void FillAs() {
    FillNormal<<<2048, 256>>>(static_cast<T*>(source), capacity / sizeof(T), 1);
  }
  void Fill(int as) {
    if (as == dtype) return;
    if (as == LG_FP32) FillAs<float>();
    else if (as == LG_FP16) FillAs<__half>();
    else FillAs<__nv_bfloat16>();
    CHECK(cudaDeviceSynchronize());
    dtype = as;
  }
  double TimeOnce(const lg_cross_entropy_args& args, size_t bytes) {
    CHECK(cudaMemcpyAsync(work, source, bytes, cudaMemcpyDeviceToDevice));
    Spin<<<1, 1>>>(60000);
    CHECK(cudaEventRecord(begin));
    CHECK_LG(lg_cross_entropy(&args));
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms;
  }
};

struct Shape {
  int rows, vocab;
  double ignored, smoothing, z_weight;
  double target;  // of the issue: ratio to the floor, 0 = none
  double scale = 1, cap = 0;
  int dtype = LG_BF16;
};

// "8192 x 128256 cap 30"
std::string NameOf(const Shape& s, const char* by) {
  char name[64];
  std::snprintf(name, sizeof name, "%d%s%d", s.rows, by, s.vocab);
  std::string all = name;
  if (s.cap != 0) std::snprintf(name, sizeof name, " cap %g", s.cap), all += name;
  if (s.scale != 1) std::snprintf(name, sizeof name, " scale %g", s.scale), all += name;
  if (s.dtype != LG_BF16) all += s.dtype == LG_FP32 ? " fp32" : " fp16";
  return all;
}

// True if no names are given, or one of them is part of the shape's.
bool Wanted(const Shape& s, int count, char** names) {
  for (int i = 0; i < count; ++i) {
    if (NameOf(s, "x").find(names[i]) != std::string::npos) return true;
  }
  return count == 0;
}

void Run(Bench& b, const Shape& s, int repetitions) {
  const size_t elements = static_cast<size_t>(s.rows) * static_cast<size_t>(s.vocab);
  const size_t bytes = elements * (s.dtype == LG_FP32 ? 4 : 2);
  if (bytes > b.capacity) return;
  b.Fill(s.dtype);
  std::vector<long long> targets(static_cast<size_t>(s.rows));
  unsigned long long state = 88172645463325252ull;
  long long unmasked = 0;
  for (auto& t : targets) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const bool ignore = static_cast<double>(state >> 11) / 9007199254740992.0 < s.ignored;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    t = ignore ? -100 : static_cast<long long>(state % static_cast<unsigned long long>(s.vocab));
    unmasked += !ignore;
  }
  CHECK(cudaMemcpy(b.targets, targets.data(), targets.size() * 8, cudaMemcpyHostToDevice));
  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = b.work;
  args.logits_dtype = s.dtype;
  args.rows = s.rows;
  args.columns = s.vocab;
  args.targets = b.targets;
  args.target_dtype = LG_INT64;
  args.label_smoothing = s.smoothing;
  args.z_loss_weight = s.z_weight;
  args.logit_scale = s.scale;
  args.logit_softcap = s.cap;
  args.denominator = static_cast<double>(unmasked);
  args.losses = b.losses;
  args.grad_logits = b.work;
  std::vector<double> with, without;
  for (int i = 0; i < repetitions + 3; ++i) {
    args.gauge = b.gauge;
    const double on = b.TimeOnce(args, bytes);
    args.gauge = nullptr;
    const double off = b.TimeOnce(args, bytes);
    if (i >= 3) with.push_back(on), without.push_back(off);
  }
  CHECK_LG(lg_gauge_publish(b.gauge, nullptr));
  CHECK(cudaDeviceSynchronize());
  const double floor = 2.0 * static_cast<double>(bytes) / b.bandwidth;
  const double own = floor * (static_cast<double>(unmasked) + s.rows) / (2.0 * s.rows);
  const double on = Quantile(with, 0.5), off = Quantile(without, 0.5);
  std::printf("| %s | %2.0f %% | %g | %g | %.4f (%.4f to %.4f) | %.4f | %+.1f %% | %.3f | %.3f | %s |\n", NameOf(s, " x ").c_str(),
              100 * s.ignored, s.smoothing, s.z_weight, on, Quantile(with, 0.1), Quantile(with, 0.9), off, 100 * (on / off - 1), on / floor, on / own,
              s.target == 0 ? "" : (on / floor <= s.target ? "met" : "missed"));
  std::fflush(stdout);
}

// Host time of a call, and GPU time of a publish.
void Overheads(Bench& b) {
  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = b.work;
  args.logits_dtype = LG_BF16;
  args.rows = 256;
  args.columns = 32000;
  args.targets = b.targets;
  args.target_dtype = LG_INT64;
  args.denominator = 256;
  args.losses = b.losses;
  args.grad_logits = b.work;
  args.gauge = b.gauge;
  std::vector<double> call, publish;
  for (int i = 0; i < 200; ++i) {
    CHECK(cudaDeviceSynchronize());
    const auto t0 = std::chrono::steady_clock::now();
    CHECK_LG(lg_cross_entropy(&args));
    const auto t1 = std::chrono::steady_clock::now();
    CHECK_LG(lg_gauge_publish(b.gauge, nullptr));
    const auto t2 = std::chrono::steady_clock::now();
    call.push_back(std::chrono::duration<double, std::micro>(t1 - t0).count());
    publish.push_back(std::chrono::duration<double, std::micro>(t2 - t1).count());
  }
  CHECK(cudaDeviceSynchronize());
  std::printf("host time: loss call %.1f us (p90 %.1f), publish %.1f us (p90 %.1f)\n", Quantile(call, 0.5), Quantile(call, 0.9), Quantile(publish, 0.5),
              Quantile(publish, 0.9));

  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_LG(lg_gauge_publish(b.gauge, stream));
  CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  constexpr int kNodes = 1000;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kNodes; ++i) CHECK_LG(lg_gauge_publish(b.gauge, stream));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<double> per;
  for (int i = 0; i < 11; ++i) {
    CHECK(cudaEventRecord(b.begin, stream));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaEventRecord(b.end, stream));
    CHECK(cudaEventSynchronize(b.end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, b.begin, b.end));
    per.push_back(1e3 * ms / kNodes);
  }
  std::printf("publish, GPU time in a captured graph: %.2f us\n", Quantile(per, 0.5));
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 15;
  Bench b{};
  b.capacity = static_cast<size_t>(16384) * 128256 * 2;
  CHECK(cudaMalloc(&b.source, b.capacity));
  CHECK(cudaMalloc(&b.work, b.capacity));
  CHECK(cudaMalloc(&b.targets, 131072 * 8));
  CHECK(cudaMalloc(&b.losses, 131072 * 4));
  CHECK(cudaEventCreate(&b.begin));
  CHECK(cudaEventCreate(&b.end));
  b.Fill(LG_BF16);
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  options.run = "cross_entropy_bench";
  options.ring_dir = "/dev/shm/lossgauge-bench-rings";
  CHECK_LG(lg_gauge_open(&options, &b.gauge));

  std::vector<double> copies;
  for (int i = 0; i < 12; ++i) {
    Spin<<<1, 1>>>(60000);
    CHECK(cudaEventRecord(b.begin));
    CHECK(cudaMemcpyAsync(b.work, b.source, b.capacity, cudaMemcpyDeviceToDevice));
    CHECK(cudaEventRecord(b.end));
    CHECK(cudaEventSynchronize(b.end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, b.begin, b.end));
    if (i > 1) copies.push_back(ms);
  }
  b.bandwidth = 2.0 * static_cast<double>(b.capacity) / Quantile(copies, 0.5);
  std::printf("copy: %.0f GB/s, read plus written\n\n", b.bandwidth / 1e6);
  std::printf("| shape | ignored | smoothing | z-loss | ms, signals on (p10 to p90) | signals off | signals cost | of the floor | of its own bytes | target |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  const Shape shapes[] = {
      {8192, 32000, 0, 0, 0, 1.06},      {8192, 128256, 0, 0, 0, 1.04},     {8192, 128256, 0.25, 0, 0, 0.95},  {16384, 128256, 0, 0, 0, 1.04},
      {4096, 256000, 0, 0, 0, 1.06},     {4096, 262144, 0, 0, 0, 1.06},     {32768, 50304, 0, 0, 0, 1.05},     {8192, 131072, 0, 0, 0, 0},
      {8192, 131072, 0, 0, 1e-4, 0},     {8192, 131072, 0, 0.1, 0, 0},      {32768, 50257, 0, 0, 0, 1.06},     {8192, 151936, 0, 0, 0, 1.06},
      {32768, 16384, 0, 0, 0, 1.08},     {65536, 4096, 0, 0, 0, 1.15},      {65536, 1024, 0, 0, 0, 1.15},      {65536, 8192, 0, 0, 0, 1.15},
      {131072, 512, 0, 0, 0, 0},         {32768, 12000, 0, 0, 0, 0},        {65536, 4096, 0.25, 0.1, 1e-4, 0}, {65536, 4097, 0, 0, 0, 0},
      {8192, 128256, 0.75, 0, 0, 0},     {8192, 32000, 0.25, 0, 0, 0},      {4096, 256000, 0.25, 0, 0, 0},     {32768, 50304, 0.25, 0, 0, 0},
      {8192, 32000, 0, 0, 0, 0, 1, 30},  {8192, 128256, 0, 0, 0, 0, 1, 30}, {4096, 256000, 0, 0, 0, 0, 1, 30}, {65536, 4096, 0, 0, 0, 0, 1, 30},
      {8192, 32000, 0, 0, 0, 0, 0.25},   {8192, 128256, 0, 0, 0, 0, 0.25},  {4096, 256000, 0, 0, 0, 0, 0.25},  {65536, 4096, 0, 0, 0, 0, 0.25},
      {8192, 128256, 0, 0.1, 0, 0, 1, 30},
      {8192, 32000, 0, 0, 0, 0, 1, 0, LG_FP16},     {8192, 32000, 0, 0, 0, 0, 1, 30, LG_FP16},   {8192, 32000, 0, 0, 0, 0, 0.25, 0, LG_FP16},
      {8192, 32000, 0, 0, 0, 0, 1, 0, LG_FP32},     {8192, 32000, 0, 0, 0, 0, 1, 30, LG_FP32},   {8192, 32000, 0, 0, 0, 0, 0.25, 0, LG_FP32},
      {8192, 128256, 0, 0, 0, 0, 1, 0, LG_FP32},    {8192, 128256, 0, 0, 0, 0, 1, 30, LG_FP32},
      // Logits that the cap bends much: a standard deviation of 4, and of 8.
      {8192, 32000, 0, 0, 0, 0, 4, 30, LG_FP16},    {8192, 32000, 0, 0, 0, 0, 8, 30, LG_FP16},   {8192, 32000, 0, 0, 0, 0, 8, 30, LG_FP32},
  };
  for (const Shape& shape : shapes) {
    if (Wanted(shape, std::max(argc - 2, 0), argv + 2)) Run(b, shape, repetitions);
  }
  std::printf("\n");
  if (argc <= 2) Overheads(b);
  CHECK_LG(lg_gauge_close(b.gauge, nullptr));
  return 0;
}
