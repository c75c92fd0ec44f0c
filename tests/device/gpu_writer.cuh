// A ring in a file, and a process that writes it from a GPU: graphs of (add to the counters, publish), with values that follow from the step's number, so
// that a reader can tell every record and every total.
#ifndef LOSSGAUGE_TESTS_DEVICE_GPU_WRITER_CUH_
#define LOSSGAUGE_TESTS_DEVICE_GPU_WRITER_CUH_

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/cuda/publish.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_reader.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge::device_test {

// In the writer's process only: its exit code is what the test sees.
#define WRITER_CUDA(x)                                                                                         \
  do {                                                                                                         \
    const cudaError_t error_ = (x);                                                                            \
    if (error_ != cudaSuccess) {                                                                               \
      std::fprintf(stderr, "writer: %s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(error_));     \
      ::_exit(error_ == cudaErrorNoDevice || error_ == cudaErrorInsufficientDriver ? 77 : 1);                  \
    }                                                                                                          \
  } while (0)

struct StepValues {
  std::uint64_t tokens, unmasked_tokens, fingerprint;
  lg_fixed128 nll;
};
__host__ __device__ inline StepValues ValuesOf(std::uint64_t step) {
  const std::uint64_t mixed = lg_ring_mix(step + 1);
  return {1 + mixed % 1000, mixed % 997 % (1 + mixed % 1000), mixed, lg_fixed128_make(static_cast<std::int64_t>(mixed >> 52), lg_ring_mix(mixed))};
}

static __global__ void AddStep(cuda::DeviceCounters* counters, const cuda::PublisherState* state) {
  const StepValues v = ValuesOf(static_cast<std::uint64_t>(state->step));
  counters->counts[cuda::kTokens] += v.tokens;
  counters->counts[cuda::kUnmaskedTokens] += v.unmasked_tokens;
  counters->counts[cuda::kFiniteTokens] += v.unmasked_tokens;
  counters->counts[cuda::kMaskFingerprint] += v.fingerprint;
  counters->sums[cuda::kNllSum] = {v.nll.lo, static_cast<cuda::Word>(v.nll.hi)};
  counters->micro_batches += 1;
  counters->present |= LG_HAS_LOSS | LG_HAS_LOGITS;
}

inline std::int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// A ring file of any number of slots. Made by the test; mapped by both processes.
class RingFile {
 public:
  RingFile(const std::string& name, std::uint32_t slots) : path_(name), bytes_(ring::RingFileBytes(LG_STEP_SLOT_BYTES, slots)) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ::posix_fallocate(fd, 0, static_cast<off_t>(bytes_)) != 0) return;
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    void* readable = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    ::close(fd);
    if (mapped == MAP_FAILED || readable == MAP_FAILED) return;
    ring::SetFormat(&identity_, LG_RING_KIND_STEPS);
    identity_.slot_count = slots;
    identity_.segment_id[0] = 0x0123456789abcdefull;
    identity_.segment_id[1] = slots;
    ring::RingWriter<> writer(mapped, identity_);
    memory_ = mapped;
    read_only_ = readable;
  }
  ~RingFile() {
    ::unlink(path_.c_str());
    if (memory_ != nullptr) ::munmap(memory_, bytes_), ::munmap(const_cast<void*>(read_only_), bytes_);
  }
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;
  bool ok() const { return memory_ != nullptr; }
  void* memory() const { return memory_; }
  const void* read_only() const { return read_only_; }
  std::size_t bytes() const { return bytes_; }
  const lg_ring_identity& identity() const { return identity_; }

 private:
  std::string path_;
  std::size_t bytes_;
  void* memory_ = nullptr;
  const void* read_only_ = nullptr;
  lg_ring_identity identity_{};
};

// The publisher's side of a RingFile, in the writer's process.
struct GpuWriter {
  explicit GpuWriter(const RingFile& file) {
    WRITER_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    WRITER_CUDA(cudaHostRegister(file.memory(), file.bytes(), cudaHostRegisterMapped | cudaHostRegisterPortable));
    void* mapped = nullptr;
    WRITER_CUDA(cudaHostGetDevicePointer(&mapped, file.memory(), 0));
    WRITER_CUDA(cudaMalloc(&launch.counters, sizeof(cuda::DeviceCounters)));
    WRITER_CUDA(cudaMemset(launch.counters, 0, sizeof(cuda::DeviceCounters)));
    WRITER_CUDA(cudaMalloc(&launch.state, sizeof(cuda::PublisherState)));
    WRITER_CUDA(cudaMemset(launch.state, 0, sizeof(cuda::PublisherState)));
    auto* const bytes = static_cast<unsigned char*>(mapped);
    launch.slots = bytes + LG_RING_HEADER_BYTES;
    launch.cursor = reinterpret_cast<unsigned long long*>(bytes + offsetof(lg_ring_header, cursor));
    launch.published_step = reinterpret_cast<long long*>(bytes + offsetof(lg_ring_header, status) + offsetof(lg_ring_status, published_step));
    const lg_ring_identity& identity = file.identity();
    launch.segment_share = lg_ring_checksum_share(identity.segment_id[0], identity.record_words) +
                           lg_ring_checksum_share(identity.segment_id[1], identity.record_words + 1);
    launch.slot_count = identity.slot_count;
    launch.block_count = 1;
    launch.set_step = -1;
    WRITER_CUDA(cudaDeviceSynchronize());
  }
  void EnqueueStep() {
    AddStep<<<1, 1, 0, stream>>>(launch.counters, launch.state);
    WRITER_CUDA(cuda::LaunchPublish(launch, stream));
  }
  cudaGraphExec_t Capture(int steps) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    WRITER_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < steps; ++i) EnqueueStep();
    WRITER_CUDA(cudaStreamEndCapture(stream, &graph));
    WRITER_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    return executable;
  }
  cudaStream_t stream = nullptr;
  cuda::PublishLaunch launch{};
};

}  // namespace lossgauge::device_test

#endif  // LOSSGAUGE_TESTS_DEVICE_GPU_WRITER_CUH_
