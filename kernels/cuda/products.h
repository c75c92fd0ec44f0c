// The three matrix products of the linear path on cuBLASLt, with the algorithm of each shape chosen once.
//
// Row-major throughout: hidden [rows, width], weight [columns, width], logits and their gradient [rows, columns].
#ifndef LOSSGAUGE_KERNELS_CUDA_PRODUCTS_H_
#define LOSSGAUGE_KERNELS_CUDA_PRODUCTS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace lossgauge::cuda {

enum class Product {
  kLogits,      // logits = hidden weight^T (+ bias)
  kGradWeight,  // grad_weight (+)= grad_logits^T hidden
  kGradHidden,  // grad_hidden = grad_logits weight
};

struct ProductShape {
  Product product;
  int dtype;      // of all operands: 0 fp32, 1 bf16, 2 fp16
  int out_dtype;  // kGradWeight: 0 or dtype; else dtype
  std::int64_t rows, columns, width;
  std::int64_t hidden_stride, weight_stride, logits_stride, grad_weight_stride;  // elements
  bool bias;  // kLogits
  bool add;   // kGradWeight: to what is there
};

struct ProductOperands {
  const void *hidden, *weight, *bias;
  void* logits;  // or their gradient
  void* grad_weight;
  void* grad_hidden;
};

// Workspace that every product may use.
constexpr std::size_t kProductWorkspaceBytes = std::size_t{32} << 20;

// Products on one device. Thread-safe.
class Products {
 public:
  // nullptr: no cuBLASLt; *why says why.
  static Products* Get(int ordinal, const char** why);

  // All return 0, or a cublasStatus_t (ProductErrorName).
  //
  // Chooses the algorithm of a shape: the one that was tuned for it, else for the nearest number of rows that serves here too, else cuBLASLt's first choice.
  int Choose(const ProductShape& shape, const ProductOperands& operands) noexcept;
  // Enqueues the product, with what Choose chooses.
  int Multiply(const ProductShape& shape, const ProductOperands& operands, void* workspace, cudaStream_t stream) noexcept;

  // Times cuBLASLt's candidates for the shape on `stream`, in turn and under load, and keeps the first that is as good as the fastest; a shape that was tuned
  // keeps what it has. Waits. Writes the outputs among the operands.
  int Tune(const ProductShape& shape, const ProductOperands& operands, void* workspace, cudaStream_t stream) noexcept;

 private:
  struct Impl;
  explicit Products(Impl* impl) : impl_(impl) {}
  Impl* const impl_;
};

const char* ProductErrorName(int status);
bool IsOutOfMemory(int status);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_PRODUCTS_H_
