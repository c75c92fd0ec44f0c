// Thousands of long rows on the device: filled with strange values, judged in float64, a gradient compared with what is right.
#ifndef LOSSGAUGE_TESTS_DEVICE_VOCAB_PARALLEL_ROWS_CUH_
#define LOSSGAUGE_TESTS_DEVICE_VOCAB_PARALLEL_ROWS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <ostream>
#include <vector>

namespace lossgauge::test {
namespace {

using Int = std::int64_t;

constexpr int kThreads = 256;
constexpr Int kPeriod = 97;  // of rows with strange values
constexpr int kGapByte = 0x5a;
constexpr double kPlanted = -40;  // the largest |z|

enum class Mask { kNone, kEveryThird, kStretch, kAllButOne, kByChance };

struct Shape {
  const char* name;
  int dtype;
  Int rows;
  std::vector<Int> cuts;  // of the columns: rank r has [cuts[r], cuts[r + 1])
  Int gap;                // elements between rows
  Mask mask;
  bool in_place, strange;
  double smoothing, z_weight;
  Int vocab() const { return cuts.back(); }
  Int stride() const { return vocab() + gap; }
  int ranks() const { return static_cast<int>(cuts.size()) - 1; }
};
void PrintTo(const Shape& s, std::ostream* to) { *to << s.name << ", " << s.rows << " x " << s.vocab() << ", " << s.ranks() << " ranks"; }

__host__ __device__ unsigned long long Mix(unsigned long long x) {
  x = (x + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 32);
}

// Of each period the first row has the largest magnitude of all, in two columns of every shard; in one the target shares the maximum with another column,
// before or behind it; further ones are not finite in one way or another.
template <class T>
__global__ void Fill(T* to, Int rows, Int vocab, Int stride, const Int* targets, const Int* cuts, int ranks, bool strange) {
  const Int all = rows * stride, step = static_cast<Int>(gridDim.x) * blockDim.x;
  for (Int i = blockIdx.x * static_cast<Int>(blockDim.x) + threadIdx.x; i < all; i += step) {
    const Int row = i / stride, column = i % stride;
    const unsigned long long x = Mix(static_cast<unsigned long long>(i));
    float z = -4.f;
    for (int part = 0; part < 4; ++part) z += static_cast<float>((x >> (16 * part)) & 0xffff) / 32768.f;
    const Int kind = row % kPeriod;
    if (column == targets[row] && row % 2 == 0) z += 12.f;
    if (kind == 0) {
      for (int rank = 0; rank < ranks; ++rank) {
        if (column == cuts[rank] + 7 || column == cuts[rank + 1] - 3) z = static_cast<float>(kPlanted);
      }
    }
    if (kind == 5 && (column == targets[row] || column == (targets[row] + vocab / 3) % vocab)) z = 20.f;
    if (strange) {
      if (kind == 11 && column % 1000 == 3) z = -INFINITY;
      if (kind == 12) z = -INFINITY;
      if (kind == 13 && column == vocab / 2) z = INFINITY;
      if (kind == 14 && column == vocab - 1) z = NAN;
      if (kind == 15 && column == targets[row]) z = -INFINITY;
      if (kind == 16 && column < vocab / 2) z = -INFINITY;  // all of the first shards
    }
    to[i] = static_cast<T>(column < vocab ? z : NAN);
  }
}

template <class Combine>
__device__ double OverBlock(double x, const Combine& combine) {
  __shared__ double of[kThreads];
  __syncthreads();
  of[threadIdx.x] = x;
  __syncthreads();
  for (int n = kThreads / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) of[threadIdx.x] = combine(of[threadIdx.x], of[threadIdx.x + n]);
    __syncthreads();
  }
  return of[0];
}

enum RowState { kLeftOut, kNan, kInfinite, kFinite };
struct RightRow {
  double objective, nll, log_z;
  int state;
  int correct;  // 1: no column before the target is as large, and none is larger. Not a bool: no byte of it is padding, which nobody writes
};

// One CTA a row, in float64.
template <class T>
__global__ void Judge(const T* logits, Int vocab, Int stride, const Int* targets, double smoothing, double z_weight, RightRow* right) {
  const Int row = blockIdx.x, target = targets[row];
  if (target < 0 || target >= vocab) {
    if (threadIdx.x == 0) right[row] = {0, 0, 0, kLeftOut, 0};
    return;
  }
  const T* const z = logits + row * stride;
  double max = -INFINITY, odd = 0;
  for (Int j = threadIdx.x; j < vocab; j += kThreads) {
    const double x = static_cast<double>(static_cast<float>(z[j]));
    if (!(x < INFINITY)) odd = 1;
    max = fmax(max, x);
  }
  const auto add = [](double a, double b) { return a + b; };
  max = OverBlock(max, [](double a, double b) { return fmax(a, b); });
  odd = OverBlock(odd, add);
  double sum = 0, z_sum = 0, first = static_cast<double>(vocab);
  for (Int j = threadIdx.x; j < vocab; j += kThreads) {
    const double x = static_cast<double>(static_cast<float>(z[j]));
    if (x == max) first = fmin(first, static_cast<double>(j));
    sum += exp(x - max);
    z_sum += x;
  }
  sum = OverBlock(sum, add);
  z_sum = OverBlock(z_sum, add);
  first = OverBlock(first, [](double a, double b) { return fmin(a, b); });
  if (threadIdx.x != 0) return;
  RightRow r;
  r.log_z = max + log(sum);
  r.nll = r.log_z - static_cast<double>(static_cast<float>(z[target]));
  r.objective = r.nll + z_weight * r.log_z * r.log_z;
  if (smoothing != 0) r.objective = (1 - smoothing) * r.nll + smoothing * (r.log_z - z_sum / static_cast<double>(vocab)) + z_weight * r.log_z * r.log_z;
  r.state = odd != 0 || max == -INFINITY ? kNan : r.objective < INFINITY ? kFinite : kInfinite;
  r.correct = first == static_cast<double>(target) && r.state == kFinite;
  if (r.state == kNan) r.objective = r.nll = r.log_z = NAN;
  right[row] = r;
}

struct Findings {
  unsigned long long wrong, harmed_gaps, hash;
  long long first_wrong;
  double squares[8];  // of a rank's columns in finite rows, times the denominator
};

// One CTA a row. ulp: of a number near 1.
template <class T>
__global__ void Compare(const T* logits, const T* grad, Int vocab, Int stride, Int rows, const Int* targets, const RightRow* right, double smoothing,
                        double z_weight, double denominator, double ulp, double smallest, const Int* cuts, int ranks, bool gaps_are_logits, Findings* found) {
  const Int row = blockIdx.x, target = targets[row];
  const RightRow r = right[row];
  const T *const z = logits + row * stride, *const g = grad + row * stride;
  unsigned long long hash = 0;
  const auto wrong_at = [&](Int j) {
    atomicAdd(&found->wrong, 1ull);
    atomicMax(&found->first_wrong, static_cast<long long>(row * stride + j));
  };
  for (int rank = 0; rank < ranks; ++rank) {
    double squares = 0;
    for (Int j = cuts[rank] + threadIdx.x; j < cuts[rank + 1]; j += kThreads) {
      const double got = static_cast<double>(static_cast<float>(g[j]));
      hash += Mix(static_cast<unsigned long long>(row * stride + j)) * static_cast<unsigned long long>(__float_as_uint(static_cast<float>(g[j])) + 1u);
      if (r.state == kLeftOut) {
        if (got != 0) wrong_at(j);
      } else if (r.state == kNan) {
        if (got == got) wrong_at(j);
      } else {
        const double p = exp(static_cast<double>(static_cast<float>(z[j])) - r.log_z);
        const double hit = j == target ? 1 - smoothing : 0, even = smoothing / static_cast<double>(vocab), pull = 2 * z_weight * r.log_z * p;
        const double exact = (p - hit - even + pull) / denominator, terms = (p + hit + even + fabs(pull)) / denominator;
        const double x = static_cast<double>(static_cast<float>(z[j]));
        const double far = x > -INFINITY ? fmax(1., (r.log_z - x) / 8) : 1;  // what rounding takes of the exponent
        if (!(fabs(got - exact) <= 0.505 * ulp * fabs(exact) + 2e-6 * far * terms + smallest)) wrong_at(j);
        squares += (got * denominator) * (got * denominator);
      }
    }
    squares = OverBlock(squares, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0 && r.state == kFinite) atomicAdd(&found->squares[rank], squares);
  }
  if (row < rows - 1) {
    for (Int j = vocab + threadIdx.x; j < stride; j += kThreads) {
      const auto* const byte = reinterpret_cast<const unsigned char*>(g + j);
      for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) {
        const unsigned char unharmed = gaps_are_logits ? reinterpret_cast<const unsigned char*>(z + j)[i] : static_cast<unsigned char>(kGapByte);
        if (byte[i] != unharmed) atomicAdd(&found->harmed_gaps, 1ull);
      }
    }
  }
  atomicAdd(&found->hash, hash);
}

}  // namespace
}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_DEVICE_VOCAB_PARALLEL_ROWS_CUH_
