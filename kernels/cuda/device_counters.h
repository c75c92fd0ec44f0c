// The counters of one step and one block in device memory, and what a launch is told. Plain data, shared by host and device.
//
// Every word is 0 when nothing has been added, so that a memset makes a fresh block; every addition is an integer addition or an integer maximum, so
// that the order of CTAs, launches and streams never shows.
#ifndef LOSSGAUGE_KERNELS_CUDA_DEVICE_COUNTERS_H_
#define LOSSGAUGE_KERNELS_CUDA_DEVICE_COUNTERS_H_

#include <cstdint>

namespace lossgauge::cuda {

using Word = unsigned long long;  // what CUDA's 64-bit atomics take

enum Count {
  kTokens,
  kUnmaskedTokens,
  kFiniteTokens,
  kNonfiniteRows,
  kBadTargets,
  kClampedRows,
  kTargetBytes,
  kNonfiniteGradRows,
  kMassErrorRows,
  kTargetHits,
  kCorrectTokens,
  kMaskFingerprint,
  kTargetFingerprint,
  kExchangeBadRows,  // contributions that are not proven
  kCounts
};

// Signed fixed point, step 2^-64 (lg_fixed128).
enum Sum { kNllSum, kObjectiveSum, kZLossSum, kScoredNllSum, kLogZSum, kLogZSqSum, kLogitGradSqSum, kProbabilityMass, kSums };

// The same, of gradients that are products (linear_rows.cu, linear_head.cu).
enum GradientSum { kHiddenGradSqSum, kHeadGradSqSum, kGradientSums };

// A maximum with where it was found: value in the high 32 bits (ordered image), then 2^48 - 1 - position, then 48 bits more (for a logit
// 2^48 - 1 - column, for a row its target). Compared as one unsigned 128-bit number: ties go to the lowest position, then the lowest column.
struct alignas(16) Place {
  Word low;
  Word high;
};
constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << 48) - 1;

struct alignas(128) DeviceCounters {
  Word counts[kCounts];
  Word micro_batches;
  Word present;  // LG_HAS_*, by any launch
  Word absent;   // LG_HAS_*, missing in a launch that had unmasked tokens
  struct {
    Word lo, hi;
  } sums[kSums];
  struct {
    Word lo, hi;
  } gradient_sums[kGradientSums];
  Word log_z_max;            // ordered image of a float, 0 = none
  Word denominator_min;      // complement of the bits of a positive double, 0 = none
  Word denominator_max;      // bits of a positive double, 0 = none
  Word first_nonfinite_row;  // 2^48 - position, 0 = none
  Word exchange_worst;       // rows * 2^20 + 2^20 - index of the sender with most bad rows in a launch, of the launch that has most; 0 = none
  Place worst_logit;
  Place worst_row;
  Word place_lock;  // guards the two places before sm_90
};

// Scratch of one launch in device memory: zero before and after.
struct alignas(128) LaunchScratch {
  unsigned next_ticket;
  unsigned finished;  // tallies that are in
  unsigned nonfinite;  // any row of the launch
  unsigned unmasked;   // any
  Word objective[3];   // sum of losses, in pieces (launch_end.cuh)
  unsigned next_zero, finished_zeroing;  // rows looked at for zeroing; CTAs that look no more
  Word counted;  // unmasked rows, by the counting kernel that runs before a launch without a given denominator
  unsigned bad_exchange, exchanged_ctas;  // any contribution that is not proven; CTAs that look at no more
  unsigned best_abs;  // bits of the largest finite |z| of finite rows, as merged so far
};

// What logits under a scale are multiplied with in the exponents of their exponentials.
struct ExponentSlopes {
  float exact;   // scale * log2(e)
  float coarse;  // 16-bit logits: a power of two, from a quarter to half of it
  float limit;   // 16-bit logits: magnitude of a row's largest logit beyond which the coarse one serves
  float rest;    // fp32 logits: what `exact` has lost by rounding
  float lowest;  // fp32 logits: a difference to the maximum whose exponential is 0
};

// What z is of a logit, for the kernels in which it is not the logit itself or a slope of its exponential.
enum class LogitMap {
  kNone,
  kScale,
  kTable,    // soft cap of bf16 logits: e^z from a table
  kCap,
  kHighCap,  // above kHighestCap, where tanh needs all digits, or with a scale beyond fp32
};
// Up to here an error of 4e-11 in e^(-2 |scale * logit / cap|) is less than 1e-7 in z.
constexpr double kHighestCap = 4096.;
// Where a soft cap bends bf16 logits: bits of magnitudes. z counts as 0 up to the first, |z| as the cap from the second on.
constexpr unsigned kMostCapEntries = 4096;
struct CapRange {
  unsigned low, high;
};

struct CrossEntropyLaunch {
  const unsigned char* logits;
  unsigned char* grad;  // null = loss only
  long long row_stride_bytes, grad_stride_bytes;
  long long rows;
  int columns, vocab_size;
  const void* targets;
  int targets_are_int64;
  long long target_stride;  // elements
  long long ignore_index;
  float label_smoothing, z_loss_weight;
  double logit_scale, logit_softcap;
  CapRange cap;  // kTable
  float* losses;
  float* log_z;
  float* loss;
  double denominator;                 // used if denominator_pointer is null and count_denominator is 0
  const double* denominator_pointer;  // device memory
  int count_denominator;              // divide by scratch->counted
  int announce_denominator;           // it goes into the counters
  const float* upstream;
  long long upstream_stride;
  const float* grad_scale;
  long long position_base;
  const long long* positions;
  const unsigned char* token_bytes;  // device memory, [token_bytes_size]; null = none
  long long token_bytes_size;
  unsigned long long present;  // LG_HAS_* that this launch vouches for
  int more_parts;              // the call goes on with another launch, which has the same scratch: loss and micro-batch are the last one's
  DeviceCounters* counters;    // null = no signals
  LaunchScratch* scratch;
  ExponentSlopes slopes;       // kernels with a logit scale
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_DEVICE_COUNTERS_H_
