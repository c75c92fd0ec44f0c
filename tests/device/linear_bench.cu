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
#include <memory>
#include <string>
#include <vector>

#include "tests/device/bench_check.h"
#include "tests/device/linear_tensors.cuh"
#include "tests/device/plain_products.h"

namespace {

using lossgauge::DeviceArray;
using lossgauge::LinearTensors;
using lossgauge::PlainProduct;

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
  long long rows, width, vocab;
};

struct Variant {
  Shape shape;
  double ignored, target;  // of the issue, ratio to the plain products over all rows
  enum { kNotTold, kTold, kInGraph } rows_are;  // whether the caller knows the number of unmasked rows; kInGraph: it does not, and replays a captured call
  long long chunk_rows;                         // 0 = the library's choice
  bool round_head;                              // grad_weight in bf16
};

std::string NameOf(const Variant& v) {
  std::string name = std::to_string(v.shape.rows) + ", " + std::to_string(v.shape.width) + ", " + std::to_string(v.shape.vocab);
  if (v.ignored > 0) name += ", " + std::to_string(static_cast<int>(v.ignored * 100 + .5)) + " % ignored";
  if (v.ignored > 0 && v.rows_are == Variant::kNotTold) name += ", not told";
  if (v.rows_are == Variant::kInGraph) name += ", in a graph";
  if (v.chunk_rows > 0) name += ", chunk " + std::to_string(v.chunk_rows);
  if (v.round_head) name += ", grad_weight bf16";
  return name;
}

// The three products over all rows of a shape, and the tensors that they share with the calls.
class Plain {
 public:
  explicit Plain(const Shape& s)
      : tensors_(s.rows, s.width, s.vocab, 1), logits_(LinearTensors::Size(s.rows, s.vocab)),
        logits_product_(CUBLAS_OP_T, CUBLAS_OP_N, s.vocab, s.rows, s.width, false, tensors_.weight, tensors_.hidden, logits_),
        hidden_product_(CUBLAS_OP_N, CUBLAS_OP_N, s.width, s.rows, s.vocab, false, tensors_.weight, logits_, tensors_.grad_hidden),
        weight_product_(CUBLAS_OP_N, CUBLAS_OP_T, s.width, s.vocab, s.rows, true, tensors_.hidden, logits_, tensors_.grad_weight) {}
  void Run() const {
    logits_product_.Run();
    hidden_product_.Run();
    weight_product_.Run();
  }
  const LinearTensors& tensors() const { return tensors_; }

 private:
  const LinearTensors tensors_;
  const DeviceArray<__nv_bfloat16> logits_;
  const PlainProduct logits_product_, hidden_product_, weight_product_;
};

// Ignores about that part of the rows; returns how many are left.
long long Mask(const LinearTensors& tensors, double ignored) {
  unsigned long long state = 88172645463325252ull;
  long long unmasked = 0;
  tensors.Mask([&](long long) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const bool ignore = static_cast<double>(state >> 11) / 9007199254740992.0 < ignored;
    unmasked += !ignore;
    return ignore;
  });
  return unmasked;
}

void Run(const Variant& v, const Plain& plain, int rounds, lg_gauge* gauge) {
  const LinearTensors& tensors = plain.tensors();
  const long long unmasked = Mask(tensors, v.ignored);
  cudaStream_t stream = nullptr;
  if (v.rows_are == Variant::kInGraph) CHECK(cudaStreamCreate(&stream));
  lg_linear_cross_entropy_args args = tensors.Args(stream, v.chunk_rows);
  args.bias = args.grad_bias = nullptr;
  args.loss.losses = args.loss.log_z = nullptr;
  args.head_grad_dtype = v.round_head ? LG_BF16 : LG_FP32;
  if (v.rows_are == Variant::kTold) args.most_unmasked_rows = unmasked;
  args.loss.gauge = gauge;
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  CHECK_LG(lg_linear_cross_entropy_plan(&args, &plan));
  CHECK_LG(lg_linear_cross_entropy_prepare(&args));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  if (v.rows_are == Variant::kInGraph) {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK_LG(lg_linear_cross_entropy(&args));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
  }
  const auto ours = [&] {
    if (executable != nullptr) CHECK(cudaGraphLaunch(executable, nullptr));
    else CHECK_LG(lg_linear_cross_entropy(&args));
    CHECK_LG(lg_gauge_publish(gauge, nullptr));
  };
  const auto products = [&] { plain.Run(); };
  const double about = std::max(0.5, Block(products, 200));
  std::vector<double> plain_ms, our_ms, ratios;
  for (int round = 0; round < rounds; ++round) {
    plain_ms.push_back(Block(products, about));
    our_ms.push_back(Block(ours, about));
    ratios.push_back(our_ms.back() / plain_ms.back());
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("| %s | %.2f | %.2f | %.3f (%.3f to %.3f) | %s | %lld x %lld | %.3f | %.4f |\n", NameOf(v).c_str(), Median(plain_ms), Median(our_ms), ratios[ratios.size() / 2],
              ratios.front(), ratios.back(), v.target > 0 ? std::to_string(v.target).substr(0, 4).c_str() : "", static_cast<long long>(plan.chunks),
              static_cast<long long>(plan.chunk_rows), static_cast<double>(plan.workspace_bytes) / 1e9, static_cast<double>(tensors.loss.Read()[0]));
  std::fflush(stdout);
  if (executable != nullptr) {
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
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
  constexpr Shape kLarge{8192, 4096, 128256}, kSmall{8192, 2048, 32000}, kWide{4096, 8192, 128256};
  constexpr auto kNotTold = Variant::kNotTold, kTold = Variant::kTold;
  const Variant variants[] = {
      {kLarge, 0, 1.04, kNotTold, 0, false},    {kLarge, .25, 0.80, kTold, 0, false}, {kLarge, .25, 0, kNotTold, 0, false},   {kLarge, .25, 0, Variant::kInGraph, 0, false},
      {kLarge, .24, 0, kTold, 0, false},        {kLarge, 0, 0, kNotTold, 1024, false}, {kLarge, 0, 0, kNotTold, 4096, false}, {kLarge, 0, 0, kNotTold, 0, true},
      {kSmall, 0, 1.08, kNotTold, 0, false},    {kWide, 0, 1.05, kNotTold, 0, false},  {kWide, 0, 0, kNotTold, 4096, false},
  };
  std::printf("| N, D, V | three products, ms | linear cross-entropy, ms | ratio (rounds) | target | chunks | extra memory, GB | loss |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::unique_ptr<const Plain> plain;
  for (const Variant& variant : variants) {
    bool wanted = count <= 2;
    for (int i = 2; i < count; ++i) wanted |= NameOf(variant).find(arguments[i]) != std::string::npos;
    if (!wanted) continue;
    const Shape& s = variant.shape;
    if (plain == nullptr || plain->tensors().rows != s.rows || plain->tensors().width != s.width) {
      plain.reset();  // before the next one takes its memory
      plain = std::make_unique<const Plain>(s);
    }
    Run(variant, *plain, rounds, gauge);
  }
  plain.reset();
  CHECK_LG(lg_gauge_close(gauge, nullptr));
}
