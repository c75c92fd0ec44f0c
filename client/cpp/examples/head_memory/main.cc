// head_memory: what a loss head takes on a GPU, by what it allocates: all logits at once against one chunk of them, 65,536 tokens at a vocabulary of 128,256.
//
//   head_memory [CHUNK_ROWS]
#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr std::int64_t kTokens = 65536, kWidth = 4096, kVocabulary = 128256;

void Check(bool ok, const char* what, const char* why) {
  if (ok) return;
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}
#define CUDA(x) Check((x) == cudaSuccess, #x, cudaGetErrorString(cudaGetLastError()))
#define LG(x) Check((x) == LG_OK, #x, lg_last_error())

// Highest use of the device's memory pool, from which the library takes its workspace, since the last call.
double PoolPeak() {
  cudaMemPool_t pool;
  std::uint64_t bytes = 0, none = 0;
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &bytes));
  CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none));
  return static_cast<double>(bytes) / 1e9;
}

void* Allocate(std::int64_t bytes, int fill) {
  void* memory = nullptr;
  CUDA(cudaMalloc(&memory, static_cast<std::size_t>(bytes)));
  CUDA(cudaMemset(memory, fill, static_cast<std::size_t>(bytes)));
  return memory;
}

}  // namespace

int main(int count, char** arguments) {
  void* logits = nullptr;
  (void)PoolPeak();
  CUDA(cudaMallocAsync(&logits, kTokens * kVocabulary * 4, nullptr));
  CUDA(cudaFreeAsync(logits, nullptr));
  std::printf("all logits in fp32, without their gradient: %.2f GB\n", PoolPeak());

  lg_linear_cross_entropy_args args;
  lg_linear_cross_entropy_args_init(&args);
  args.dtype = LG_BF16;
  args.rows = kTokens;
  args.width = kWidth;
  args.columns = kVocabulary;
  args.hidden = Allocate(kTokens * kWidth * 2, 0x3c);
  args.weight = Allocate(kVocabulary * kWidth * 2, 0x3c);
  args.grad_hidden = Allocate(kTokens * kWidth * 2, 0);
  args.grad_weight = Allocate(kVocabulary * kWidth * 4, 0);
  args.loss.targets = Allocate(kTokens * 8, 0);
  args.loss.loss = static_cast<float*>(Allocate(4, 0));
  args.chunk_rows = count > 1 ? std::atoll(arguments[1]) : 4096;
  lg_linear_plan plan{};
  plan.struct_size = sizeof plan;
  LG(lg_linear_cross_entropy_plan(&args, &plan));
  LG(lg_linear_cross_entropy(&args));
  std::printf("loss and both gradients by chunks of %lld tokens: %.2f GB beyond inputs and outputs, as planned (%.2f GB, %.2f of them logits)\n",
              static_cast<long long>(plan.chunk_rows), PoolPeak(), static_cast<double>(plan.workspace_bytes) / 1e9, static_cast<double>(plan.logits_bytes) / 1e9);
  float loss = 0;
  CUDA(cudaMemcpy(&loss, args.loss.loss, 4, cudaMemcpyDeviceToHost));
  std::printf("loss %.4f (ln %lld, as all rows of the head are equal here)\n", static_cast<double>(loss), static_cast<long long>(kVocabulary));
}
