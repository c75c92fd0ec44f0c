// A register tile of 6 x 16 sums, B packed in panels of 16 columns and blocks of 256 rows (16 KiB: stays in L1). The body is compiled
// twice, for AVX2 with FMA and for the baseline, and chosen once at run time.
#include "client/cpp/examples/train_text/matmul.h"

#include <algorithm>
#include <cstring>

namespace lossgauge::train_text {
namespace {

constexpr std::int64_t kTileRows = 6;
constexpr std::int64_t kPanel = 16;
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kRowsPerPart = 20 * kTileRows;

typedef float Float8 __attribute__((vector_size(32), aligned(4), may_alias));

#define LOSSGAUGE_INLINE inline __attribute__((always_inline))

// One tile of R rows: c[0..R, 0..columns] += a[R, depth] * panel[depth, 16].
template <int R>
LOSSGAUGE_INLINE void Tile(ConstMatrix a, const float* panel, std::int64_t depth, float* c, std::int64_t ldc, std::int64_t columns, bool add) {
  Float8 sum[R][2] = {};
  for (std::int64_t p = 0; p < depth; ++p) {
    const Float8 b0 = *reinterpret_cast<const Float8*>(panel + p * kPanel);
    const Float8 b1 = *reinterpret_cast<const Float8*>(panel + p * kPanel + 8);
    const float* column = a.data + p * a.column_stride;
    for (int r = 0; r < R; ++r) {
      const float x = column[r * a.row_stride];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = c + r * ldc;
    if (columns == kPanel) {
      Float8* out8 = reinterpret_cast<Float8*>(out);
      out8[0] = add ? out8[0] + sum[r][0] : sum[r][0];
      out8[1] = add ? out8[1] + sum[r][1] : sum[r][1];
    } else {
      float row[kPanel];
      std::memcpy(row, sum[r], sizeof(row));
      for (std::int64_t j = 0; j < columns; ++j) out[j] = add ? out[j] + row[j] : row[j];
    }
  }
}

struct Block {
  ConstMatrix a;
  const float* b;
  float* c;
  std::int64_t n, k, first_row, last_row;
  bool accumulate;
};

// Rows [first_row, last_row) of the product.
LOSSGAUGE_INLINE void MultiplyRows(const Block& x) {
  alignas(64) float panel[kDepth * kPanel];
  for (std::int64_t p0 = 0; p0 < x.k; p0 += kDepth) {
    const std::int64_t depth = std::min(kDepth, x.k - p0);
    const bool add = x.accumulate || p0 > 0;
    for (std::int64_t j0 = 0; j0 < x.n; j0 += kPanel) {
      const std::int64_t columns = std::min(kPanel, x.n - j0);
      for (std::int64_t p = 0; p < depth; ++p) {
        const float* from = x.b + (p0 + p) * x.n + j0;
        float* to = panel + p * kPanel;
        for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j];
        for (std::int64_t j = columns; j < kPanel; ++j) to[j] = 0;
      }
      for (std::int64_t i = x.first_row; i < x.last_row; i += kTileRows) {
        const ConstMatrix a{x.a.data + i * x.a.row_stride + p0 * x.a.column_stride, x.a.row_stride, x.a.column_stride};
        float* c = x.c + i * x.n + j0;
        switch (std::min(kTileRows, x.last_row - i)) {
          case 6: Tile<6>(a, panel, depth, c, x.n, columns, add); break;
          case 5: Tile<5>(a, panel, depth, c, x.n, columns, add); break;
          case 4: Tile<4>(a, panel, depth, c, x.n, columns, add); break;
          case 3: Tile<3>(a, panel, depth, c, x.n, columns, add); break;
          case 2: Tile<2>(a, panel, depth, c, x.n, columns, add); break;
          default: Tile<1>(a, panel, depth, c, x.n, columns, add); break;
        }
      }
    }
  }
}

void MultiplyBaseline(const Block& block) { MultiplyRows(block); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void MultiplyAvx2(const Block& block) { MultiplyRows(block); }
#endif

using Kernel = void (*)(const Block&);

Kernel ChooseKernel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return MultiplyAvx2;
#endif
  return MultiplyBaseline;
}

}  // namespace

void Multiply(ThreadPool& pool, ConstMatrix a, const float* b, float* c, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  static const Kernel kernel = ChooseKernel();
  pool.Run((m + kRowsPerPart - 1) / kRowsPerPart, [&](std::int64_t part) {
    const std::int64_t first = part * kRowsPerPart;
    kernel({a, b, c, n, k, first, std::min(m, first + kRowsPerPart), accumulate});
  });
}

void Transpose(const float* in, std::int64_t rows, std::int64_t columns, float* out) {
  constexpr std::int64_t kTile = 16;  // so that reads and writes both stay within few cache lines
  for (std::int64_t i0 = 0; i0 < rows; i0 += kTile) {
    for (std::int64_t j0 = 0; j0 < columns; j0 += kTile) {
      for (std::int64_t i = i0; i < std::min(rows, i0 + kTile); ++i) {
        for (std::int64_t j = j0; j < std::min(columns, j0 + kTile); ++j) out[j * rows + i] = in[i * columns + j];
      }
    }
  }
}

}  // namespace lossgauge::train_text
