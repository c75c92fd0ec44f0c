/* Arithmetic on lg_fixed128 (signed fixed point, step 2^-64, two's complement over 128 bits), shared by the kernels that sum and the
 * readers that compare. Sums are exact and order-free; a sum that leaves [-2^63, 2^63) wraps, so terms are clamped before summing.
 *
 * Compiles as C11, C++17 and CUDA C++. No function here allocates, prints or fails.
 */
#ifndef LOSSGAUGE_RING_FIXED128_H_
#define LOSSGAUGE_RING_FIXED128_H_

#include <string.h>

#include "proto/lossgauge/ring/ring_abi.h"

LG_RING_FN lg_fixed128 lg_fixed128_make(int64_t hi, uint64_t lo) {
  lg_fixed128 result;
  result.lo = lo;
  result.hi = hi;
  return result;
}

/* value * 1.0, exact */
LG_RING_FN lg_fixed128 lg_fixed128_from_int64(int64_t value) { return lg_fixed128_make(value, 0); }

LG_RING_FN lg_fixed128 lg_fixed128_add(lg_fixed128 a, lg_fixed128 b) {
  const uint64_t lo = a.lo + b.lo;
  const uint64_t carry = lo < a.lo ? 1u : 0u;
  return lg_fixed128_make((int64_t)((uint64_t)a.hi + (uint64_t)b.hi + carry), lo);
}

LG_RING_FN lg_fixed128 lg_fixed128_negate(lg_fixed128 a) {
  return lg_fixed128_make((int64_t)(~(uint64_t)a.hi + (a.lo == 0 ? 1u : 0u)), ~a.lo + 1u);
}

LG_RING_FN lg_fixed128 lg_fixed128_subtract(lg_fixed128 a, lg_fixed128 b) {
  return lg_fixed128_add(a, lg_fixed128_negate(b));
}

/* -1, 0 or 1: the exact order of the values. */
LG_RING_FN int lg_fixed128_compare(lg_fixed128 a, lg_fixed128 b) {
  if (a.hi != b.hi) return a.hi < b.hi ? -1 : 1;
  if (a.lo != b.lo) return a.lo < b.lo ? -1 : 1;
  return 0;
}

/* The nearest step (ties to even): exact for every double whose last bit is worth 2^-64 or more, so for all of magnitude >= 2^-11.
 * NaN gives 0. Out of range, infinities included, gives the nearest end of the range. */
LG_RING_FN lg_fixed128 lg_fixed128_from_double(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  const int negative = (int)(bits >> 63);
  const int exponent_field = (int)((bits >> 52) & 0x7ff);
  const uint64_t fraction = bits & UINT64_C(0xfffffffffffff);
  if (exponent_field == 0x7ff && fraction != 0) return lg_fixed128_make(0, 0);
  if (exponent_field >= 1023 + 63) {
    return negative ? lg_fixed128_make(INT64_MIN, 0) : lg_fixed128_make(INT64_MAX, UINT64_MAX);
  }
  if (exponent_field == 0) return lg_fixed128_make(0, 0); /* zeros and subnormals: far below half a step */
  const uint64_t mantissa = fraction | UINT64_C(0x10000000000000);
  const int shift = exponent_field - 1075 + 64; /* value = mantissa * 2^shift steps */
  lg_fixed128 result = {0, 0};
  if (shift >= 64) {
    result = lg_fixed128_make((int64_t)(mantissa << (shift - 64)), 0);
  } else if (shift > 0) {
    result = lg_fixed128_make((int64_t)(mantissa >> (64 - shift)), mantissa << shift);
  } else if (shift == 0) {
    result = lg_fixed128_make(0, mantissa);
  } else if (shift >= -53) {
    const int drop = -shift;
    const uint64_t half = UINT64_C(1) << (drop - 1);
    const uint64_t rest = mantissa & ((half << 1) - 1);
    uint64_t kept = mantissa >> drop;
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
    result = lg_fixed128_make(0, kept);
  }
  return negative ? lg_fixed128_negate(result) : result;
}

/* The nearest double, ties to even: one rounding. */
LG_RING_FN double lg_fixed128_to_double(lg_fixed128 value) {
  const int negative = value.hi < 0;
  if (negative) value = lg_fixed128_negate(value);
  uint64_t hi = (uint64_t)value.hi; /* the lowest value negates to itself: as unsigned it is its own magnitude */
  uint64_t lo = value.lo;
  if (hi == 0 && lo == 0) return 0.0;
  int exponent = 63; /* weight of the top bit of hi */
#if defined(__GNUC__) || defined(__CUDA_ARCH__)
  if (hi == 0) {
    hi = lo;
    lo = 0;
    exponent -= 64;
  }
  /* A reader converts many sums of each record, and the end of a loss launch waits for one: the loop below would be half the time. */
#if defined(__CUDA_ARCH__)
  const int shift = __clzll((long long)hi);
#else
  const int shift = __builtin_clzll(hi);
#endif
  if (shift > 0) {
    hi = (hi << shift) | (lo >> (64 - shift));
    lo <<= shift;
    exponent -= shift;
  }
#else
  while ((hi >> 63) == 0) { /* at most 127 rounds */
    hi = (hi << 1) | (lo >> 63);
    lo <<= 1;
    --exponent;
  }
#endif
  /* 53 bits of hi are kept; the 11 below them and all of lo decide the rounding. */
  uint64_t kept = hi >> 11;
  const uint64_t rest = hi & 0x7ff;
  if (rest > 0x400 || (rest == 0x400 && (lo != 0 || (kept & 1) != 0))) ++kept;
  if (kept >> 53) { /* rounded up to the next power of two */
    kept >>= 1;
    ++exponent;
  }
  const uint64_t bits =
      ((uint64_t)negative << 63) | ((uint64_t)(exponent + 1023) << 52) | (kept & UINT64_C(0xfffffffffffff));
  double result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

#endif /* LOSSGAUGE_RING_FIXED128_H_ */
