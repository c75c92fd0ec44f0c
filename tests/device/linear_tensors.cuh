// A linear head on the device, bf16, with every output that a call can write: filled by seed, freed at the end. A CUDA error ends the program.
#ifndef LOSSGAUGE_TESTS_DEVICE_LINEAR_TENSORS_CUH_
#define LOSSGAUGE_TESTS_DEVICE_LINEAR_TENSORS_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/device/bench_check.h"

namespace lossgauge {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) { CHECK(cudaMalloc(&memory_, size * sizeof(T) + 1)); }
  ~DeviceArray() { (void)cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  operator T*() const { return static_cast<T*>(memory_); }
  std::size_t bytes() const { return size_ * sizeof(T); }
  void Set(int byte) const { CHECK(cudaMemset(memory_, byte, bytes())); }
  void Write(const std::vector<T>& values) const { CHECK(cudaMemcpy(memory_, values.data(), bytes(), cudaMemcpyHostToDevice)); }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    CHECK(cudaMemcpy(values.data(), memory_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  const std::size_t size_;
  void* memory_ = nullptr;
};

// Uniform in (-scale / 2, scale / 2).
static __global__ void FillUniform(__nv_bfloat16* p, std::size_t n, float scale, unsigned long long seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    unsigned long long x = (i + seed * 0x100000001ull) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    p[i] = __float2bfloat16((static_cast<float>(x >> 40) * 5.9604645e-8f - 0.5f) * scale);
  }
}

struct LinearTensors {
  const std::int64_t rows, width, vocab;
  DeviceArray<__nv_bfloat16> hidden, weight, bias, grad_hidden;
  DeviceArray<float> grad_weight, grad_bias, losses, log_z, loss;
  DeviceArray<std::int64_t> targets;

  // Every row unmasked.
  LinearTensors(std::int64_t given_rows, std::int64_t given_width, std::int64_t given_vocab, unsigned seed)
      : rows(given_rows), width(given_width), vocab(given_vocab), hidden(Size(rows, width)), weight(Size(vocab, width)), bias(Size(vocab, 1)),
        grad_hidden(Size(rows, width)), grad_weight(Size(vocab, width)), grad_bias(Size(vocab, 1)), losses(Size(rows, 1)), log_z(Size(rows, 1)), loss(1),
        targets(Size(rows, 1)) {
    FillUniform<<<1056, 256>>>(weight, Size(vocab, width), 0.06f, seed + 1000);
    FillUniform<<<64, 256>>>(bias, Size(vocab, 1), 1.f, seed + 2000);
    Refill(seed);
    Mask([](std::int64_t) { return false; });
  }
  static std::size_t Size(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

  void Refill(unsigned seed) const {
    FillUniform<<<1056, 256>>>(hidden, Size(rows, width), 2.f, seed);
    CHECK(cudaDeviceSynchronize());
  }
  template <class F>
  void Mask(const F& is_masked) const {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < rows; ++i) values.push_back(is_masked(i) ? -100 : (i * 2654435761 + 12345) % vocab);
    targets.Write(values);
  }

  lg_linear_cross_entropy_args Args(cudaStream_t stream, std::int64_t chunk_rows) const {
    lg_linear_cross_entropy_args args;
    lg_linear_cross_entropy_args_init(&args);
    args.hidden = hidden;
    args.dtype = LG_BF16;
    args.rows = rows;
    args.width = width;
    args.weight = weight;
    args.columns = vocab;
    args.bias = bias;
    args.grad_hidden = grad_hidden;
    args.grad_weight = grad_weight;
    args.grad_bias = grad_bias;
    args.chunk_rows = chunk_rows;
    args.loss.targets = targets;
    args.loss.losses = losses;
    args.loss.log_z = log_z;
    args.loss.loss = loss;
    args.loss.stream = stream;
    return args;
  }

  // The call for `count` rows from `begin` on, which adds to the head's gradients unless it is the first.
  lg_linear_cross_entropy_args Part(const lg_linear_cross_entropy_args& args, std::int64_t begin, std::int64_t count) const {
    lg_linear_cross_entropy_args part = args;
    part.hidden = hidden + begin * width;
    part.grad_hidden = grad_hidden + begin * width;
    part.rows = count;
    part.accumulate = begin != 0;
    part.loss.targets = targets + begin;
    part.loss.losses = losses + begin;
    part.loss.log_z = log_z + begin;
    return part;
  }

  // NaN in every output, once the device is done with them.
  void Clear() const {
    CHECK(cudaDeviceSynchronize());
    grad_hidden.Set(0xff), grad_weight.Set(0xff), grad_bias.Set(0xff), losses.Set(0xff), log_z.Set(0xff), loss.Set(0xff);
    CHECK(cudaDeviceSynchronize());
  }
  // The bytes of all outputs, once the device is done.
  std::vector<unsigned char> Results() const {
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned char> all;
    const auto append = [&](const void* from, std::size_t bytes) {
      all.resize(all.size() + bytes);
      CHECK(cudaMemcpy(all.data() + all.size() - bytes, from, bytes, cudaMemcpyDeviceToHost));
    };
    append(grad_hidden, grad_hidden.bytes()), append(grad_weight, grad_weight.bytes()), append(grad_bias, grad_bias.bytes());
    append(losses, losses.bytes()), append(log_z, log_z.bytes()), append(loss, loss.bytes());
    return all;
  }
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_DEVICE_LINEAR_TENSORS_CUH_
