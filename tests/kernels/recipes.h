// The small inputs that the conformance cases are built from: exact in bf16, fp16 and fp32, so that a dtype does not change the
// right answer.
#ifndef LOSSGAUGE_TESTS_KERNELS_RECIPES_H_
#define LOSSGAUGE_TESTS_KERNELS_RECIPES_H_

#include <cstdint>
#include <vector>

namespace lossgauge::test {

using Matrix = std::vector<double>;  // row-major

inline Matrix Z(std::int64_t rows, std::int64_t columns, std::int64_t first_row = 0) {
  Matrix z(static_cast<std::size_t>(rows * columns));
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t v = 0; v < columns; ++v) {
      z[static_cast<std::size_t>(n * columns + v)] =
          static_cast<double>((((n + first_row) * 7919 + v * 104729 + 13) % 257) - 128) / 16.0;
    }
  }
  return z;
}

inline std::vector<std::int64_t> Y(std::int64_t rows, std::int64_t columns) {
  std::vector<std::int64_t> y;
  for (std::int64_t n = 0; n < rows; ++n) y.push_back((31 * n + 7) % columns);
  return y;
}

inline Matrix X(std::int64_t rows, std::int64_t hidden) {
  Matrix x;
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t h = 0; h < hidden; ++h) x.push_back(static_cast<double>(((37 * n + 101 * h + 5) % 33) - 16) / 32.0);
  }
  return x;
}

inline Matrix W(std::int64_t columns, std::int64_t hidden) {
  Matrix w;
  for (std::int64_t v = 0; v < columns; ++v) {
    for (std::int64_t h = 0; h < hidden; ++h) w.push_back(static_cast<double>(((53 * v + 29 * h + 11) % 33) - 16) / 32.0);
  }
  return w;
}

// a [rows, inner] times the transpose of b [columns, inner].
inline Matrix TimesTransposed(const Matrix& a, const Matrix& b, std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  Matrix out(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        sum += a[static_cast<std::size_t>(i * inner + k)] * b[static_cast<std::size_t>(j * inner + k)];
      }
      out[static_cast<std::size_t>(i * columns + j)] = sum;
    }
  }
  return out;
}

inline Matrix Transposed(const Matrix& a, std::int64_t rows, std::int64_t columns) {
  Matrix out(a.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      out[static_cast<std::size_t>(j * rows + i)] = a[static_cast<std::size_t>(i * columns + j)];
    }
  }
  return out;
}

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_RECIPES_H_
