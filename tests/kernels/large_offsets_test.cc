// B27: element offsets beyond 2^31 and 2^32. The tensors are sparse mappings: only the few rows that are looked at take memory,
// the others are masked, and a masked row is not read. Their gradient would be written, so the rows in between are skipped by a
// row stride instead.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/recipes.h"

namespace lossgauge::test {
namespace {

class SparseMapping {
 public:
  explicit SparseMapping(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = static_cast<unsigned char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  ~SparseMapping() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  unsigned char* data() const { return data_; }

 private:
  std::size_t bytes_;
  unsigned char* data_;
};

struct LastRow {
  std::int64_t total_rows;  // of the whole [total_rows, 128256] tensor
  std::int64_t recipe_row;
  double nll, log_z;
};

class LargeOffsets : public testing::TestWithParam<LastRow> {};

TEST_P(LargeOffsets, B27_TheLastRowIsReadAndWrittenWhereItLies) {
  constexpr std::int64_t kColumns = 128256;
  const LastRow& last = GetParam();
  const std::int64_t stride = (last.total_rows - 1) * kColumns;  // row 1 of the call is the tensor's last row
  ASSERT_GT(stride + kColumns, std::int64_t{INT32_MAX});
  const SparseMapping logits((stride + kColumns) * 2), grad((stride + kColumns) * 2);
  if (!logits.ok() || !grad.ok()) GTEST_SKIP() << "no address space for 2 x " << (stride * 2 >> 30) << " GiB";
  const std::int64_t recipe_rows[] = {0, last.recipe_row};
  for (std::int64_t i = 0; i < 2; ++i) {
    const Matrix z = Z(1, kColumns, recipe_rows[i]);
    for (std::int64_t j = 0; j < kColumns; ++j) {
      Store(LG_BF16, z[static_cast<std::size_t>(j)], logits.data() + (i * stride + j) * 2);
    }
  }
  const std::vector<std::int64_t> targets{7, 7};
  float losses[2], log_z[2];
  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = logits.data();
  args.logits_dtype = LG_BF16;
  args.rows = 2;
  args.columns = kColumns;
  args.row_stride = args.grad_row_stride = stride;
  args.targets = targets.data();
  args.reduction = LG_SUM;
  args.losses = losses;
  args.log_z = log_z;
  args.grad_logits = grad.data();
  args.threads = 2;
  ASSERT_EQ(lg_cross_entropy(&args), LG_OK) << lg_last_error();
  EXPECT_NEAR(static_cast<double>(losses[1]), last.nll, 1e-6 * last.nll);
  EXPECT_NEAR(static_cast<double>(log_z[1]), last.log_z, 1e-6 * last.log_z);
  for (std::int64_t i = 0; i < 2; ++i) {
    const Matrix z = Z(1, kColumns, recipe_rows[i]);
    double sum = 0;
    for (const double value : z) sum += std::exp(value - static_cast<double>(log_z[i]));
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const double exact = std::exp(z[static_cast<std::size_t>(j)] - static_cast<double>(log_z[i])) / sum - (j == 7 ? 1 : 0);
      ASSERT_NEAR(Load(LG_BF16, grad.data() + (i * stride + j) * 2), exact, 0x1p-8 * std::fabs(exact)) << i << " " << j;
    }
  }
  // Where a 32-bit offset would have landed.
  const std::int64_t wrapped = static_cast<std::int64_t>(static_cast<std::uint32_t>(stride));
  if (wrapped > kColumns && wrapped + kColumns < stride) {
    for (std::int64_t j = 0; j < kColumns; ++j)
      ASSERT_EQ(Load(LG_BF16, grad.data() + (wrapped + j) * 2), 0.0) << "written at a wrapped offset";
  }
}

INSTANTIATE_TEST_SUITE_P(Elements, LargeOffsets,
                         testing::Values(LastRow{16744, 38, 17.079112797757, 17.016612797757},
                                         LastRow{33488, 77, 21.641290348644, 17.016290348644}));

// The whole tensor, masked but for its first and last row: row indices, not only strides, reach 2^31 elements. Loss only.
TEST(LargeOffsetsOfManyRows, B27_MaskedRowsAreNotRead) {
  constexpr std::int64_t kColumns = 128256, kRows = 16744;
  const SparseMapping logits(kRows * kColumns * 2);
  if (!logits.ok()) GTEST_SKIP() << "no address space for 4 GiB";
  std::vector<std::int64_t> targets(kRows, -100);
  targets.front() = targets.back() = 7;
  for (const std::int64_t row : {std::int64_t{0}, kRows - 1}) {
    const Matrix z = Z(1, kColumns, row % 257);
    for (std::int64_t j = 0; j < kColumns; ++j) {
      Store(LG_BF16, z[static_cast<std::size_t>(j)], logits.data() + (row * kColumns + j) * 2);
    }
  }
  std::vector<float> losses(kRows, -1);
  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = logits.data();
  args.logits_dtype = LG_BF16;
  args.rows = kRows;
  args.columns = kColumns;
  args.targets = targets.data();
  args.losses = losses.data();
  ASSERT_EQ(lg_cross_entropy(&args), LG_OK) << lg_last_error();
  EXPECT_NEAR(static_cast<double>(losses.back()), 17.079112797757, 1.7e-5);
  EXPECT_EQ(losses[1], 0.0f);
}

}  // namespace
}  // namespace lossgauge::test
