// The three matrix products of a linear head and nothing else, each with the fastest of cuBLASLt's candidates: what linear cross-entropy is held against.
#ifndef LOSSGAUGE_TESTS_DEVICE_PLAIN_PRODUCTS_H_
#define LOSSGAUGE_TESTS_DEVICE_PLAIN_PRODUCTS_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace lossgauge {

// Column-major D [m, n] = op(A) op(B), bf16 operands, sums in fp32. Ends the program on an error.
class PlainProduct {
 public:
  // fp32_out: D in fp32, else bf16. Times the candidates in turn.
  PlainProduct(cublasOperation_t op_a, cublasOperation_t op_b, std::int64_t m, std::int64_t n, std::int64_t k, bool fp32_out, const void* a, const void* b, void* d);
  void Run() const;

 private:
  void RunWith(const cublasLtMatmulAlgo_t& algorithm) const;
  cublasLtMatmulDesc_t desc_;
  cublasLtMatrixLayout_t layout_a_, layout_b_, layout_d_;
  cublasLtMatmulAlgo_t algorithm_;
  const void *a_, *b_;
  void* d_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_DEVICE_PLAIN_PRODUCTS_H_
