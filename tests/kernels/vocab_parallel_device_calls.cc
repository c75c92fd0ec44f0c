// Copies on a device, in one allocation for all calls: thousands of small ones would take longer than the tests. Everything is copied back, inputs too.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/cuda_placement.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/ring_telemetry.h"
#include "tests/kernels/vocab_parallel_calls.h"

namespace lossgauge::test {
namespace {

class DeviceCopies {
 public:
  // `part`: of the arena's, for calls that run beside each other.
  explicit DeviceCopies(int part = 0) : used_(static_cast<std::size_t>(part) * kPart) { Check(cudaDeviceSynchronize()); }
  // The same host memory twice has one copy.
  template <class T>
  void Move(T** pointer, std::size_t bytes) {
    if (*pointer == nullptr) return;
    auto* const host = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(*pointer));
    for (const Copy& copy : copies_) {
      if (copy.host == host) {
        *pointer = reinterpret_cast<T*>(copy.device);
        return;
      }
    }
    unsigned char* const device = Arena() + used_;
    used_ += (bytes + 255) / 256 * 256;
    ASSERT_LE(used_ % kPart + bytes, kPart);
    Check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    copies_.push_back({host, device, bytes});
    *pointer = reinterpret_cast<T*>(device);
  }
  void Back() {
    Check(cudaDeviceSynchronize());
    for (const Copy& copy : copies_) {
      std::vector<unsigned char> now(copy.bytes);
      Check(cudaMemcpy(now.data(), copy.device, copy.bytes, cudaMemcpyDeviceToHost));
      if (copy.bytes != 0 && std::memcmp(now.data(), copy.host, copy.bytes) != 0) std::memcpy(copy.host, now.data(), copy.bytes);
    }
  }

 private:
  struct Copy {
    unsigned char* host;
    unsigned char* device;
    std::size_t bytes;
  };
  static constexpr std::size_t kPart = std::size_t{16} << 20, kArena = 8 * kPart;
  static unsigned char* Arena() {
    static unsigned char* const arena = [] {
      void* made = nullptr;
      Check(cudaMalloc(&made, kArena));
      return static_cast<unsigned char*>(made);
    }();
    return arena;
  }
  std::vector<Copy> copies_;
  std::size_t used_;
};

std::size_t Bytes(std::int64_t rows, std::int64_t columns, std::int64_t stride, int dtype) {
  if (rows <= 0 || columns <= 0) return 0;
  return static_cast<std::size_t>(((rows - 1) * (stride != 0 ? stride : columns) + columns) * BytesOf(dtype));
}

lg_vocab_parallel_args OnDevice(const lg_vocab_parallel_args& args, DeviceCopies* copies) {
  lg_vocab_parallel_args moved = args;
  lg_cross_entropy_args& loss = moved.loss;
  const auto per_row = static_cast<std::size_t>(loss.rows) * sizeof(float);
  copies->Move(&loss.logits, Bytes(loss.rows, loss.columns, loss.row_stride, loss.logits_dtype));
  copies->Move(&loss.grad_logits, Bytes(loss.rows, loss.columns, loss.grad_row_stride, loss.logits_dtype));
  copies->Move(&loss.targets, Bytes(loss.rows, 1, loss.target_stride, loss.target_dtype));
  copies->Move(&loss.losses, per_row);
  copies->Move(&loss.log_z, per_row);
  copies->Move(&loss.loss, sizeof(float));
  copies->Move(&loss.upstream, loss.upstream_stride != 0 ? per_row : sizeof(float));
  copies->Move(&loss.positions, static_cast<std::size_t>(loss.rows) * sizeof(std::int64_t));
  return moved;
}

// What a device cannot keep.
class SkipsHostOnly final : public testing::EmptyTestEventListener {
 public:
  void OnTestStart(const testing::TestInfo& info) override {
    const std::string name = std::string(info.test_suite_name()) + "." + info.name();
    struct Skip {
      const char* suffix;
      const char* why;
    };
    const Skip skips[] = {
        {"VocabParallel.AGroupOfOneHasTheBitsOfTheUnshardedLoss", "a device has other kernels for it: the same to rounding"},
        {"VocabParallelLinear.AGroupOfOneHasTheBitsOfTheUnshardedCall", "a device has other kernels for it: the same to rounding"},
        {"VocabParallelLinear.RanksThatCannotBelongToOneLossAreRefusedByNameOnAll", "no code can tell of a contradiction there"},
        {"VocabParallelLinear.AnExchangeThatFailsEndsTheCallUncounted", "a device has counted what came before"},
        {"VocabParallelLinear.APlanIsOfOneChunkAndOneShard", "of the host's memory"},
        {"VocabParallelLinear.ChunksWithoutAWishAreTheSameOnAllRanks", "of the host's memory"},
        {"VocabParallelLinear.ArgumentsAreRefusedByName", "of the host's memory"},
        {"VocabParallelLinear.AGroupOfOneNeedsNoExchange", "a device has other kernels for it: the same to rounding"},
        {"VocabParallelFaults.AreSeenAtTheirFirstStepAndNamed/5", "no code can tell of a contradiction there: vocab_parallel_device_test.cc"},
        {"VocabParallelFaults.AreSeenAtTheirFirstStepAndNamed/6", "no code can tell of a contradiction there: vocab_parallel_device_test.cc"},
        {"VocabParallelFaults.StandInTheTableOfTheReadme/5", "likewise"},
        {"VocabParallelFaults.StandInTheTableOfTheReadme/6", "likewise"},
    };
    for (const Skip& skip : skips) {
      if (name.size() >= std::strlen(skip.suffix) && name.compare(name.size() - std::strlen(skip.suffix), std::string::npos, skip.suffix) == 0)
        GTEST_SKIP() << skip.why;
    }
  }
};

[[maybe_unused]] const bool kListens = [] {
  WaitForRecord() = [] { Check(cudaDeviceSynchronize()); };
  testing::UnitTest::GetInstance()->listeners().Append(new SkipsHostOnly);
  return true;
}();

lg_linear_cross_entropy_args OnDevice(const lg_linear_cross_entropy_args& args, DeviceCopies* copies) {
  lg_linear_cross_entropy_args moved = args;
  lg_cross_entropy_args& loss = moved.loss;
  const auto per_row = static_cast<std::size_t>(args.rows) * sizeof(float);
  copies->Move(&moved.hidden, Bytes(args.rows, args.width, 0, args.dtype));
  copies->Move(&moved.weight, Bytes(args.columns, args.width, 0, args.dtype));
  copies->Move(&moved.bias, Bytes(1, args.columns, 0, args.dtype));
  copies->Move(&moved.grad_hidden, Bytes(args.rows, args.width, 0, args.dtype));
  copies->Move(&moved.grad_weight, Bytes(args.columns, args.width, 0, args.head_grad_dtype));
  copies->Move(&moved.grad_bias, Bytes(1, args.columns, 0, args.head_grad_dtype));
  copies->Move(&loss.targets, static_cast<std::size_t>(args.rows) * sizeof(std::int64_t));
  copies->Move(&loss.losses, per_row);
  copies->Move(&loss.log_z, per_row);
  copies->Move(&loss.loss, sizeof(float));
  copies->Move(&loss.upstream, loss.upstream_stride != 0 ? per_row : sizeof(float));
  copies->Move(&loss.grad_scale, sizeof(float));
  copies->Move(&loss.denominator_pointer, sizeof(double));
  copies->Move(&loss.positions, static_cast<std::size_t>(args.rows) * sizeof(std::int64_t));
  return moved;
}

}  // namespace

int CallBegin(const lg_vocab_parallel_args& args, ExchangeMemory& contribution) {
  DeviceCopies copies;
  const lg_vocab_parallel_args moved = OnDevice(args, &copies);
  unsigned char* to = contribution.data();
  copies.Move(&to, contribution.bytes());
  const int code = lg_vocab_parallel_begin(&moved, to);
  copies.Back();
  return code;
}

int CallFinish(const lg_vocab_parallel_args& args, const ExchangeMemory& gathered) {
  DeviceCopies copies;
  const lg_vocab_parallel_args moved = OnDevice(args, &copies);
  const unsigned char* from = gathered.data();
  copies.Move(&from, gathered.bytes());
  const int code = lg_vocab_parallel_finish(&moved, from);
  copies.Back();
  return code;
}

// On a stream of its own: ranks that wait for each other must not wait for a stream's workspace, too.
int CallLinear(const lg_vocab_parallel_linear_args& args) {
  DeviceCopies copies(args.group_index % 8);
  lg_linear_cross_entropy_args linear = OnDevice(*args.linear, &copies);
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  linear.loss.stream = stream;
  lg_vocab_parallel_linear_args moved = args;
  moved.linear = &linear;
  const int code = lg_vocab_parallel_linear_cross_entropy(&moved);
  Check(cudaStreamSynchronize(stream));
  copies.Back();
  Check(cudaStreamDestroy(stream));
  return code;
}
void CopyFromExchange(void* to, const void* from, std::size_t bytes, void* stream) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream)));
  Check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}
void CopyToExchange(void* to, const void* from, std::size_t bytes, void* stream) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)));
  Check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

}  // namespace lossgauge::test
