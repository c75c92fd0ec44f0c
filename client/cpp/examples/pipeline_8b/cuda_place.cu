// Ranks on GPUs. One each: they exchange over NCCL, the library that lossgauge loads; of it the example needs what sums and gathers by themselves. More ranks
// than GPUs, which NCCL does not take: they exchange through host memory.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "client/cpp/examples/pipeline_8b/place.h"
#include "lossgauge/lossgauge.h"

namespace lossgauge::pipeline_8b {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "pipeline_8b: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CUDA(x) Check((x), #x)

__device__ unsigned long long Mix(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
// Standard normal, a pure function of its place.
__device__ float Normal(unsigned long long seed, unsigned long long index) {
  const unsigned long long x = Mix(Mix(seed * 0x9e3779b97f4a7c15ull + 1) + index);
  const float u = (static_cast<float>(x >> 40) + 1.f) / 16777217.f, angle = static_cast<float>(x & 0xffffff) / 8388608.f;
  return sqrtf(-2.f * logf(u)) * cospif(angle);
}
__device__ float Head(unsigned long long seed, long long row, long long k, long long width) {
  return Normal(seed + 77, static_cast<unsigned long long>(row * width + k));
}

__global__ void FillHeadKernel(__nv_bfloat16* to, long long first, long long rows, long long width, unsigned long long seed) {
  const float scale = rsqrtf(static_cast<float>(width));
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < rows * width; i += static_cast<long long>(gridDim.x) * blockDim.x) {
    to[i] = __float2bfloat16(scale * Head(seed, first + i / width, i % width, width));
  }
}
__global__ void FillHiddenKernel(__nv_bfloat16* to, const long long* targets, long long rows, long long width, float pull, unsigned long long seed,
                                 unsigned long long head_seed) {
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < rows * width; i += static_cast<long long>(gridDim.x) * blockDim.x) {
    const long long target = targets[i / width];
    const float noise = Normal(seed, static_cast<unsigned long long>(i));
    to[i] = __float2bfloat16(noise + (target >= 0 ? pull * Head(head_seed, target, i % width, width) : 0.f));
  }
}

// What of NCCL is called here by its own names.
struct Nccl {
  int (*AllGather)(const void*, void*, std::size_t, int, void*, cudaStream_t) = nullptr;
  int (*AllReduce)(const void*, void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  Nccl() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW);
    if (library == nullptr) return;
    AllGather = reinterpret_cast<decltype(AllGather)>(dlsym(library, "ncclAllGather"));
    AllReduce = reinterpret_cast<decltype(AllReduce)>(dlsym(library, "ncclAllReduce"));
  }
};
constexpr int kNcclUint8 = 1, kNcclBfloat16 = 9, kNcclSum = 0;

class CudaPlace : public Place {
 public:
  CudaPlace() {
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA(cudaMemGetInfo(&free_before_, &total_));
    least_free_ = free_before_;
  }
  ~CudaPlace() override {
    if (!abandoned_) (void)cudaStreamDestroy(stream_);
  }
  void* stream() const override { return stream_; }
  void* Allocate(std::int64_t bytes) override {
    void* memory = nullptr;
    CUDA(cudaMalloc(&memory, static_cast<std::size_t>(bytes)));
    return memory;
  }
  void Free(void* memory) override {
    if (!abandoned_) CUDA(cudaFree(memory));
  }
  void Abandon() override { abandoned_ = true; }
  void Clear(void* memory, std::int64_t bytes) override { CUDA(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), stream_)); }
  void Write(void* to, const void* from, std::int64_t bytes) override {
    CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream_));
    Finish();
  }
  void Read(void* to, const void* from, std::int64_t bytes) override {
    CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_));
    Finish();
  }
  void FillHead(void* head, std::int64_t first, std::int64_t rows, std::int64_t width, std::uint64_t seed) override {
    FillHeadKernel<<<2048, 256, 0, stream_>>>(static_cast<__nv_bfloat16*>(head), first, rows, width, seed);
    CUDA(cudaGetLastError());
  }
  void FillHidden(void* hidden, const std::int64_t* targets, std::int64_t rows, std::int64_t width, double lead, std::uint64_t seed,
                  std::uint64_t head_seed) override {
    static_assert(sizeof(long long) == sizeof(std::int64_t), "targets are read as they are");
    FillHiddenKernel<<<2048, 256, 0, stream_>>>(static_cast<__nv_bfloat16*>(hidden), reinterpret_cast<const long long*>(targets), rows, width,
                                                static_cast<float>(lead / std::sqrt(static_cast<double>(width))), seed, head_seed);
    CUDA(cudaGetLastError());
  }
  void Finish() override {
    CUDA(cudaStreamSynchronize(stream_));
    std::size_t now = 0, total = 0;
    CUDA(cudaMemGetInfo(&now, &total));
    least_free_ = now < least_free_ ? now : least_free_;
  }
  std::int64_t PeakBytes() override { return static_cast<std::int64_t>(free_before_ - least_free_); }

 protected:
  cudaStream_t stream_ = nullptr;
  bool abandoned_ = false;

 private:
  std::size_t free_before_ = 0, least_free_ = 0, total_ = 0;
};

class NcclPlace final : public CudaPlace {
 public:
  NcclPlace(int ranks, void* communicator, Nccl nccl) : ranks_(ranks), communicator_(communicator), nccl_(nccl) {}
  ~NcclPlace() override {
    if (!abandoned_) (void)lg_communicator_close(communicator_);  // closing waits for all ranks
  }
  std::string SumHidden(void* grad, std::int64_t count) override {
    if (ranks_ == 1) return "";
    const int error = nccl_.AllReduce(grad, grad, static_cast<std::size_t>(count), kNcclBfloat16, kNcclSum, communicator_, stream_);
    return error == 0 ? "" : "ncclAllReduce: error " + std::to_string(error);
  }
  std::string Gather(const void* contribution, void* gathered, std::int64_t bytes, const SpoilGathered& spoil) override {
    const int error = nccl_.AllGather(contribution, gathered, static_cast<std::size_t>(bytes), kNcclUint8, communicator_, stream_);
    if (error != 0) return "ncclAllGather: error " + std::to_string(error);
    if (!spoil) return "";
    std::vector<unsigned char> received(static_cast<std::size_t>(bytes * ranks_));
    Read(received.data(), gathered, bytes * ranks_);
    spoil(received.data(), bytes);
    Write(gathered, received.data(), bytes * ranks_);
    return "";
  }
  void* communicator() const override { return communicator_; }
  double TimeExchange(std::int64_t chunks, std::int64_t bytes) override {
    auto* const gathered = static_cast<unsigned char*>(Allocate(bytes * ranks_));
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    float ms = 0;
    for (int round = 0; round < 2; ++round) {  // the first connects
      CUDA(cudaEventRecord(begin, stream_));
      for (std::int64_t i = 0; i < chunks; ++i) (void)Gather(gathered, gathered, bytes, nullptr);
      CUDA(cudaEventRecord(end, stream_));
      Finish();
      CUDA(cudaEventElapsedTime(&ms, begin, end));
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    Free(gathered);
    return static_cast<double>(ms);
  }
  const char* PeakName() const override { return "taken of the device since the communicator was there"; }

 private:
  const int ranks_;
  void* const communicator_;
  const Nccl nccl_;
};

class SharedGpuPlace final : public CudaPlace {
 public:
  SharedGpuPlace(const Options& options, int rank, SharedExchange* exchange) : ranks_(options.ranks), rank_(rank), exchange_(exchange) {}

  std::string SumHidden(void* grad, std::int64_t count) override {
    if (ranks_ == 1) return "";
    std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
    Read(values.data(), grad, count * 2);
    std::string error = exchange_->SumBf16(rank_, values.data(), count);
    Write(grad, values.data(), count * 2);
    return error;
  }
  std::string Gather(const void* contribution, void* gathered, std::int64_t bytes, const SpoilGathered& spoil) override {
    std::vector<unsigned char> part(static_cast<std::size_t>(bytes)), received(static_cast<std::size_t>(bytes * ranks_));
    Read(part.data(), contribution, bytes);
    std::string error = exchange_->Gather(rank_, part.data(), received.data(), bytes);
    if (error.empty() && spoil) spoil(received.data(), bytes);
    Write(gathered, received.data(), bytes * ranks_);
    return error;
  }
  void* communicator() const override { return nullptr; }
  double TimeExchange(std::int64_t chunks, std::int64_t bytes) override {
    auto* const gathered = static_cast<unsigned char*>(Allocate(bytes * ranks_));
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < chunks; ++i) (void)Gather(gathered, gathered, bytes, nullptr);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    Free(gathered);
    return ms;
  }
  const char* PeakName() const override { return "taken of the device by all ranks on it"; }

 private:
  const std::int64_t ranks_;
  const int rank_;
  SharedExchange* const exchange_;
};

}  // namespace

std::unique_ptr<Place> MakeCudaPlace(const Options& options, int rank, SharedExchange* exchange, std::string* error) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 || (devices <= rank && !options.share_gpus)) {
    *error = "--cuda: rank " + std::to_string(rank) + " has no GPU, there are " + std::to_string(devices);
    return nullptr;
  }
  CUDA(cudaSetDevice(rank % devices));
  unsigned char id[128] = {};
  if (!options.share_gpus && rank == 0 && lg_communicator_unique_id(id) != LG_OK) {
    *error = lg_last_error();
    return nullptr;
  }
  CUDA(cudaFree(nullptr));  // the context takes memory, too
  std::vector<unsigned char> ids(sizeof id * static_cast<std::size_t>(options.ranks));
  *error = exchange->Gather(rank, id, ids.data(), sizeof id);
  if (!error->empty()) return nullptr;
  if (options.share_gpus) return std::make_unique<SharedGpuPlace>(options, rank, exchange);
  void* communicator = nullptr;
  if (lg_communicator_open(ids.data(), static_cast<std::int32_t>(options.ranks), rank, &communicator) != LG_OK) {
    *error = lg_last_error();
    return nullptr;
  }
  const Nccl nccl;
  if (nccl.AllGather == nullptr || nccl.AllReduce == nullptr) {
    *error = "no libnccl.so.2";
    return nullptr;
  }
  return std::make_unique<NcclPlace>(static_cast<int>(options.ranks), communicator, nccl);
}

}  // namespace lossgauge::pipeline_8b
