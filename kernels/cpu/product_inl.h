// Products of fp32 matrices by Eigen's blocked kernel, with its blocking and memory given from here: bits then depend on shapes alone (Eigen's own
// choice asks the machine for its caches), and a thread that multiplies never allocates.
//
// The includer defines the macro Eigen as a namespace of its instruction set's own, before anything includes Eigen: its templates are weak symbols, and
// the linker must not take one of a wider machine.
#ifndef LOSSGAUGE_KERNELS_CPU_PRODUCT_INL_H_
#define LOSSGAUGE_KERNELS_CPU_PRODUCT_INL_H_

#ifndef Eigen
#error "define Eigen as a namespace of this instruction set's own"
#endif
#define EIGEN_MPL2_ONLY
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
#include <Eigen/Core>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/linear_job.h"

namespace lossgauge::cpu {
namespace HWY_NAMESPACE {
namespace {

// How a factor lies in memory: rows one after the other, or columns.
enum class Order { kRows, kColumns };

class GivenBlocking : public Eigen::internal::level3_blocking<float, float> {
 public:
  GivenBlocking(float* left, float* right, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    m_blockA = left;
    m_blockB = right;
    m_mc = rows;
    m_nc = columns;
    m_kc = depth;
  }
};

// out += left * right; left [rows, depth], right [depth, columns], out [rows, columns] in columns. Strides in elements between rows or columns, as
// each is ordered. `packed_left` holds rows * depth floats, `packed_right` kRightBlock * depth.
template <Order kLeft, Order kRight>
void AddProduct(std::int64_t rows, std::int64_t columns, std::int64_t depth, const float* left, std::int64_t left_stride, const float* right,
                std::int64_t right_stride, float* out, std::int64_t out_stride, float* packed_left, float* packed_right) {
  constexpr int kLeftOrder = kLeft == Order::kRows ? Eigen::RowMajor : Eigen::ColMajor;
  constexpr int kRightOrder = kRight == Order::kRows ? Eigen::RowMajor : Eigen::ColMajor;
  GivenBlocking blocking(packed_left, packed_right, rows, std::min(columns, kRightBlock), depth);
  Eigen::internal::general_matrix_matrix_product<std::int64_t, float, kLeftOrder, false, float, kRightOrder, false, Eigen::ColMajor, 1>::run(
      rows, columns, depth, left, left_stride, right, right_stride, out, 1, out_stride, 1.0f, blocking);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_PRODUCT_INL_H_
