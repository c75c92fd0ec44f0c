// C (+)= A * B in fp32 for row-major B and C. Sums over k run in blocks of a fixed size in a fixed order: the same bits with any
// number of threads.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_MATMUL_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_MATMUL_H_

#include <cstdint>
#include <vector>

#include "client/cpp/examples/train_text/thread_pool.h"

namespace lossgauge::train_text {

// Element (i, j) is at data[i * row_stride + j * column_stride]: a matrix or, with the strides swapped, its transpose.
struct ConstMatrix {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

// c[m, n] = a[m, k] * b[k, n], or += with `accumulate`. b and c have n contiguous elements a row. b and c must not overlap.
void Multiply(ThreadPool& pool, ConstMatrix a, const float* b, float* c, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate);

// out[columns, rows] = in[rows, columns]^T
void Transpose(const float* in, std::int64_t rows, std::int64_t columns, float* out);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_MATMUL_H_
