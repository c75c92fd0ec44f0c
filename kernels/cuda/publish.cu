// One CTA: reads and zeroes a block's counters, builds the record, writes it to the ring by the GPU writer's protocol
// (proto/lossgauge/ring/ring_abi.h). Nearly all of its time is memory latency and a system fence, so there is one round of loads for everything, no
// pass through shared memory, one barrier and one fence: each warp of the record holds all counters in its registers, two a lane, and each word of
// the record is a thread's, made from them by a table. The last warp keeps the protocol and, once the record is out, zeroes what has been read.
//
// Order. All stores to the ring are relaxed at system scope, so that each word is whole for the host. The fence is one thread's; the barrier before
// it makes it speak for the CTA, and the stream's order for the kernels before (a fence is cumulative: it orders what its thread has seen happen).
//   payload | fence | even word   A reader that finds the even word (acquire) finds all of the payload: else a whole record could fail its
//                                 checksum.
// A fence costs 0.3 to 0.5 us here, and two places do without one:
//   odd word, payload   A reader of the record that stood in this slot may find words of this one before the odd word, and at its second look still
//                       the old sequence word. The checksum, which covers every word, refuses such a copy; the reader then looks again before it
//                       judges (RingReader), so it delivers nothing wrong, and what is lapped is counted as lapped.
//   even word, cursor   A reader that finds n in the cursor must find publication n, or a newer one, in its slot. So what is stored beside the even
//                       word of n is n - 1, whose own even word went before the fence above. Who ends the gauge stores n (~CudaGauge).
// Between two publishes the order is the stream's: the second kernel begins after all stores of the first are done.
#include "kernels/cuda/publish.h"

#include <cstddef>

#include "kernels/cuda/tally.cuh"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::cuda {
namespace {

constexpr int kRecordWords = LG_STEP_SLOT_BYTES / 8, kWordWarps = kRecordWords / 32, kThreads = kRecordWords + 32;
static_assert(kRecordWords % 32 == 0, "a thread for each word of a record");
constexpr int kCounterWords = offsetof(DeviceCounters, place_lock) / 8;
static_assert(kCounterWords > 32 && kCounterWords <= 64, "a lane holds two words of the counters");

#define LG_WORD(field) static_cast<int>(offsetof(lg_step_record, field) / 8)
#define LG_COUNTER(field) static_cast<int>(offsetof(DeviceCounters, field) / 8)

// What a thread makes its word of. 8 bytes: read in one load, beside those of the counters.
struct alignas(8) WordRule {
  unsigned char counter;  // word of DeviceCounters
  unsigned char high;     // kPlace: the word above it
  unsigned char shift;    // of the counter, to the right
  unsigned char needs;    // bit of LG_HAS_* without which the word is 0
  unsigned flags;
};
enum : unsigned { kTotal = 1, kComplement = 2, kOf48Bits = 4, kOrderedFloat = 8, kLessOne = 16, kPlace = 32, kOf20Bits = 64 };
constexpr unsigned char kAlways = 31, kNever = 30;

struct WordRules {
  WordRule of[kRecordWords];
};
constexpr unsigned char BitOf(unsigned has) {
  unsigned char bit = 0;
  while (has >> bit != 1) ++bit;
  return bit;
}
constexpr WordRules MakeWordRules() {
  WordRules rules{};
  for (WordRule& rule : rules.of) rule.needs = kNever;
  const auto set = [&](int word, int counter, unsigned char needs, unsigned flags, int shift = 0) {
    rules.of[word] = {static_cast<unsigned char>(counter), static_cast<unsigned char>(counter + 1), static_cast<unsigned char>(shift), needs, flags};
  };
  const auto count = [&](int word, Count which, unsigned char needs, int total) {
    set(word, LG_COUNTER(counts) + which, needs, 0);
    if (total >= 0) set(total, LG_COUNTER(counts) + which, needs, kTotal);
  };
  const auto sum = [&](int word, Sum which, unsigned char needs, int total) {
    for (int i = 0; i < 2; ++i) {
      set(word + i, LG_COUNTER(sums) + 2 * which + i, needs, 0);
      if (total >= 0) set(total + i, LG_COUNTER(sums) + 2 * which + i, needs, kTotal);
    }
  };
  const unsigned char bytes = BitOf(LG_HAS_TARGET_BYTES), grad = BitOf(LG_HAS_LOGIT_GRAD), mass = BitOf(LG_HAS_MASS), logits = BitOf(LG_HAS_LOGITS),
                      objective = BitOf(LG_HAS_OBJECTIVE), denominator = BitOf(LG_HAS_DENOMINATOR), worst_row = BitOf(LG_HAS_WORST_ROW),
                      worst_logit = BitOf(LG_HAS_WORST_LOGIT);
  count(LG_WORD(tokens), kTokens, kAlways, LG_WORD(total_tokens));
  count(LG_WORD(unmasked_tokens), kUnmaskedTokens, kAlways, LG_WORD(total_unmasked_tokens));
  count(LG_WORD(finite_tokens), kFiniteTokens, kAlways, LG_WORD(total_finite_tokens));
  count(LG_WORD(nonfinite_rows), kNonfiniteRows, kAlways, LG_WORD(total_nonfinite_rows));
  count(LG_WORD(bad_targets), kBadTargets, kAlways, LG_WORD(total_bad_targets));
  count(LG_WORD(clamped_rows), kClampedRows, kAlways, LG_WORD(total_clamped_rows));
  count(LG_WORD(target_bytes), kTargetBytes, bytes, LG_WORD(total_target_bytes));
  count(LG_WORD(nonfinite_grad_rows), kNonfiniteGradRows, grad, LG_WORD(total_nonfinite_grad_rows));
  count(LG_WORD(mass_error_rows), kMassErrorRows, mass, LG_WORD(total_mass_error_rows));
  count(LG_WORD(target_hits), kTargetHits, kAlways, -1);
  count(LG_WORD(correct_tokens), kCorrectTokens, kAlways, LG_WORD(total_correct_tokens));
  count(LG_WORD(mask_fingerprint), kMaskFingerprint, kAlways, -1);
  count(LG_WORD(target_fingerprint), kTargetFingerprint, kAlways, -1);
  count(LG_WORD(exchange_bad_rows), kExchangeBadRows, kAlways, -1);
  sum(LG_WORD(nll_sum), kNllSum, kAlways, LG_WORD(total_nll_sum));
  sum(LG_WORD(objective_sum), kObjectiveSum, objective, -1);
  sum(LG_WORD(z_loss_sum), kZLossSum, objective, LG_WORD(total_z_loss_sum));
  sum(LG_WORD(scored_nll_sum), kScoredNllSum, bytes, LG_WORD(total_scored_nll_sum));
  sum(LG_WORD(log_z_sum), kLogZSum, logits, -1);
  sum(LG_WORD(log_z_sq_sum), kLogZSqSum, logits, -1);
  sum(LG_WORD(logit_grad_sq_sum), kLogitGradSqSum, grad, -1);
  sum(LG_WORD(probability_mass), kProbabilityMass, mass, -1);
  const auto gradient_sum = [&](int word, GradientSum which, unsigned has) {
    for (int i = 0; i < 2; ++i) set(word + i, LG_COUNTER(gradient_sums) + 2 * which + i, BitOf(has), 0);
  };
  gradient_sum(LG_WORD(hidden_grad_sq_sum), kHiddenGradSqSum, LG_HAS_HIDDEN_GRAD);
  gradient_sum(LG_WORD(head_grad_sq_sum), kHeadGradSqSum, LG_HAS_HEAD_GRAD);
  set(LG_WORD(micro_batches), LG_COUNTER(micro_batches), kAlways, 0);
  set(LG_WORD(log_z_max), LG_COUNTER(log_z_max), logits, kOrderedFloat);
  set(LG_WORD(denominator_min), LG_COUNTER(denominator_min), denominator, kComplement);
  set(LG_WORD(denominator_max), LG_COUNTER(denominator_max), denominator, 0);
  // 2^48 - position, and 2^48 - 1 - position or column (see Place): less one, all are complements in 48 bits.
  set(LG_WORD(first_nonfinite_row), LG_COUNTER(first_nonfinite_row), BitOf(LG_HAS_FIRST_NONFINITE_ROW), kLessOne | kComplement | kOf48Bits);
  // Likewise, of 2^20 - index.
  set(LG_WORD(exchange_bad_sender), LG_COUNTER(exchange_worst), kAlways, kLessOne | kComplement | kOf20Bits);
  set(LG_WORD(worst_row_nll), LG_COUNTER(worst_row) + 1, worst_row, kOrderedFloat, 32);
  set(LG_WORD(worst_row_position), LG_COUNTER(worst_row), worst_row, kPlace | kComplement | kOf48Bits, 48);
  set(LG_WORD(worst_row_target), LG_COUNTER(worst_row), worst_row, kOf48Bits);
  set(LG_WORD(max_abs_logit), LG_COUNTER(worst_logit) + 1, worst_logit, kOrderedFloat, 32);
  set(LG_WORD(worst_logit_position), LG_COUNTER(worst_logit), worst_logit, kPlace | kComplement | kOf48Bits, 48);
  set(LG_WORD(worst_logit_column), LG_COUNTER(worst_logit), worst_logit, kComplement | kOf48Bits);
  rules.of[LG_WORD(total_steps)].flags = rules.of[LG_WORD(total_nonfinite_steps)].flags = kTotal;
  return rules;
}
__device__ const WordRules kWordRules = MakeWordRules();
static_assert(LG_WORD(max_abs_logit) < 32 && LG_WORD(log_z_max) < 32 && LG_WORD(denominator_max) < 32 && LG_WORD(wall_ns) < 32, "the first warp's");
static_assert(LG_WORD(logit_grad_sq_sum) == 31 && LG_WORD(worst_row_nll) >= 32 && LG_WORD(learning_rate) < 64, "and of the second");
static_assert(LG_WORD(total_nll_sum) >= 64 && LG_WORD(total_nonfinite_steps) >= 64, "and of the third");

// Terms that must cover every finite token to mean anything: absent unless every launch with unmasked tokens had them.
constexpr unsigned kNeedsEveryLaunch = LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD | LG_HAS_MASS | LG_HAS_TARGET_BYTES |
                                       LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD;

__device__ __forceinline__ double ReadScalar(const HandedScalar& s) {
  if (s.pointer == nullptr) return s.value;
  return s.is_fp64 ? *static_cast<const double*>(s.pointer) : static_cast<double>(*static_cast<const float*>(s.pointer));
}
__device__ __forceinline__ float FromOrderedBits(unsigned x) { return __uint_as_float(x & 0x80000000u ? x & 0x7fffffffu : ~x); }
__device__ __forceinline__ Word BitsOf(double x) { return static_cast<Word>(__double_as_longlong(x)); }
__device__ __forceinline__ void StoreSystem(unsigned long long* to, unsigned long long x) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}
// What this thread has stored, and what it has seen other threads of the CTA store, before whatever it stores next: for the host too.
__device__ __forceinline__ void ReleaseToSystem() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.release.sys;" ::: "memory");  // without the other half, which forgets the first-level cache
#else
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

// Sum of the lanes' values, mod 2^64, in the first lane. In three parts of which 32 do not overflow 32 bits: half the latency of shuffles.
__device__ __forceinline__ Word WarpSumByParts(Word x) {
  const unsigned low = __reduce_add_sync(~0u, static_cast<unsigned>(x) & 0x3fffffu);
  const unsigned middle = __reduce_add_sync(~0u, static_cast<unsigned>(x >> 22) & 0x3fffffu);
  const unsigned high = __reduce_add_sync(~0u, static_cast<unsigned>(x >> 44));
  return low + (static_cast<Word>(middle) << 22) + (static_cast<Word>(high) << 44);
}

// A warp's copy of a block's counters: lane l has words l and l + 32.
struct Counters {
  Word a, b;
  __device__ __forceinline__ Counters(const DeviceCounters* c, int lane) {
    const Word* words = reinterpret_cast<const Word*>(c);
    a = words[lane];
    b = lane < kCounterWords - 32 ? words[lane + 32] : 0;
  }
  __device__ __forceinline__ Word Get(int word) const {
    const Word x = __shfl_sync(~0u, a, word), y = __shfl_sync(~0u, b, word);  // of lane word % 32
    return word < 32 ? x : y;
  }
};

__global__ void __launch_bounds__(kThreads) Publish(const __grid_constant__ PublishLaunch a) {
  __shared__ Word shares[kWordWarps];
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31;
  // All loads before the first use of any.
  Counters counters(a.counters, lane);
  const Word* const totals = reinterpret_cast<const Word*>(a.state->totals);
  constexpr int kTotalStride = sizeof(lg_step_record) / 8;
  const WordRule rule = warp < kWordWarps ? kWordRules.of[t] : WordRule{};
  const bool has_total = t >= LG_WORD(total_steps) && t <= LG_WORD(total_nonfinite_steps);
  Word total = has_total ? totals[t] : 0;
  const long long state_step = a.state->step;
  Word publications = a.state->publications, slot_index = a.state->slot;
  const bool added_to = lane > 0 && lane < a.block_count && a.counters[lane].micro_batches != 0;
  double grad_norm = 0., learning_rate = 0., denominator = 0.;
  if (warp == 0 && a.denominator.given) denominator = ReadScalar(a.denominator);
  if (warp > 0 && a.grad_norm.given) grad_norm = ReadScalar(a.grad_norm);
  if (warp > 0 && a.learning_rate.given) learning_rate = ReadScalar(a.learning_rate);
  const long long step = a.set_step >= 0 ? a.set_step : state_step;
  if (publications == PublisherState::kClosed) return;

  // The main block goes last: who has its record of a step, has all of the step.
  unsigned left = __ballot_sync(~0u, added_to) | 1u;
  for (bool first = true; left != 0; first = false) {
    const int block = 31 - __clz(static_cast<int>(left));
    left ^= 1u << block;
    if (!first || block != 0) {
      if (!first) __syncthreads();  // the shares have been read
      counters = Counters(&a.counters[block], lane);
      total = has_total ? totals[block * kTotalStride + t] : 0;
    }
    unsigned long long* const slot = reinterpret_cast<unsigned long long*>(a.slots + slot_index * LG_STEP_SLOT_BYTES);
    const Word even = 2 * (publications + 1);
    Word checksum = 0, word = 0;
    if (warp == kWordWarps) {
      checksum = a.segment_share + lg_ring_checksum_share(even, 0);
      if (lane == 0) StoreSystem(slot, even - 1);
    } else {
      // Bits below 2^16 only; two more of our own.
      unsigned had = static_cast<unsigned>(__shfl_sync(~0u, static_cast<unsigned>(counters.a), LG_COUNTER(present)));
      const unsigned absent = __shfl_sync(~0u, static_cast<unsigned>(counters.a), LG_COUNTER(absent));
      const unsigned low_nonzero = __ballot_sync(~0u, counters.a != 0), high_nonzero = __ballot_sync(~0u, counters.b != 0);
      const auto nonzero = [&](int word) { return ((word < 32 ? low_nonzero : high_nonzero) >> (word & 31) & 1) != 0; };
      if (nonzero(LG_COUNTER(worst_logit) + 1)) had |= LG_HAS_WORST_LOGIT;
      if (nonzero(LG_COUNTER(worst_row) + 1)) had |= LG_HAS_WORST_ROW;
      if (nonzero(LG_COUNTER(first_nonfinite_row))) had |= LG_HAS_FIRST_NONFINITE_ROW;
      had &= ~(absent & kNeedsEveryLaunch);

      word = counters.Get(rule.counter);
      if (warp == 1) {
        const Word high = counters.Get(rule.high);
        if (rule.flags & kLessOne) --word;
        word >>= rule.shift;
        if (rule.flags & kPlace) word |= high << 16;
      } else if (warp == 0) {
        word >>= rule.shift;
      }
      if (warp <= 1) {
        if (rule.flags & kComplement) word = ~word;
        if (rule.flags & kOf48Bits) word &= kPlaceMask;
        if (rule.flags & kOf20Bits) word &= 0xfffffu;
        if (rule.flags & kOrderedFloat) word = word != 0 ? BitsOf(FromOrderedBits(static_cast<unsigned>(word))) : 0;
      }
      if (!((had | 1u << kAlways) >> rule.needs & 1)) word = 0;
      const bool main = block == 0;  // what the job hands over goes into the main block's record
      if (warp == 0) {
        unsigned long long now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (t == LG_WORD(step)) word = static_cast<Word>(step);
        if (t == LG_WORD(block)) word = static_cast<Word>(block);
        if (t == LG_WORD(phase)) word = a.phase;
        if (t == LG_WORD(wall_ns)) word = now;
        if (t == LG_WORD(boot_ns)) word = now + static_cast<Word>(a.boot_minus_global_ns);
        if (main) {
          if (a.grad_norm.given) had |= LG_HAS_GRAD_NORM;
          if (a.learning_rate.given) had |= LG_HAS_LEARNING_RATE;
          if (a.reported_given) had |= LG_HAS_REPORTED_LOSS;
          if (a.denominator.given) {
            const bool valid = denominator > 0. && denominator < INFINITY;  // from a pointer it may be anything
            had = valid ? had | LG_HAS_DENOMINATOR : had & ~static_cast<unsigned>(LG_HAS_DENOMINATOR);
            if (t == LG_WORD(denominator_min) || t == LG_WORD(denominator_max)) word = valid ? BitsOf(denominator) : 0;
          }
        }
        if (t == LG_WORD(present)) word = had;
      } else if (warp == 1) {
        if (main) {
          if (t == LG_WORD(grad_norm)) word = BitsOf(grad_norm);
          if (t == LG_WORD(learning_rate)) word = BitsOf(learning_rate);
          if (a.reported_given) {
            if (t == LG_WORD(reported_loss)) word = BitsOf(a.reported_value);
            if (t == LG_WORD(reported_loss_auxiliary)) word = BitsOf(a.reported_auxiliary);
            if (t == LG_WORD(reported_loss_dtype)) word = a.reported_dtype;
            if (t == LG_WORD(reported_loss_interval)) word = a.reported_interval;
          }
        }
        if (t == LG_WORD(total_steps)) word = 1;
        word += total;
      } else {
        if (t == LG_WORD(total_nonfinite_steps)) {
          const auto bad = [](double x) { return !(fabs(x) < INFINITY); };
          const bool bad_gradient = (had & LG_HAS_LOGIT_GRAD) != 0 && nonzero(LG_COUNTER(counts) + kNonfiniteGradRows);
          const bool bad_scalar = main && (bad(grad_norm) || bad(learning_rate) || (a.reported_given && bad(a.reported_value)));
          word = nonzero(LG_COUNTER(counts) + kNonfiniteRows) || bad_gradient || bad_scalar;
        }
        word += total;
        // A 128-bit total's low word stands before its high word.
        const bool carry = __shfl_up_sync(~0u, word < total, 1);
        const bool high = t == LG_WORD(total_nll_sum) + 1 || t == LG_WORD(total_scored_nll_sum) + 1 || t == LG_WORD(total_z_loss_sum) + 1;
        if (high && carry) ++word;
      }
      const bool payload = t != LG_WORD(sequence) && t != kRecordWords - 1;
      if (payload) StoreSystem(slot + t, word);
      const Word share = WarpSumByParts(payload ? lg_ring_checksum_share(word, static_cast<Word>(t)) : 0);
      if (lane == 0) shares[warp] = share;
    }
    __syncthreads();
    if (warp == kWordWarps) {
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < kWordWarps; ++i) checksum += shares[i];
        StoreSystem(slot + kRecordWords - 1, checksum);
        ReleaseToSystem();  // every payload word, by whatever thread of the CTA, before the even sequence word
        StoreSystem(slot, even);
        StoreSystem(a.cursor, publications);  // of the record before this one: see Order
        if (block == 0) StoreSystem(reinterpret_cast<unsigned long long*>(a.published_step), static_cast<unsigned long long>(step));
      }
      Word* const words = reinterpret_cast<Word*>(&a.counters[block]);
      if (counters.a != 0) words[lane] = 0;
      if (counters.b != 0) words[lane + 32] = 0;
    } else if (rule.flags & kTotal) {
      const_cast<Word*>(totals)[block * kTotalStride + t] = word;
    }
    ++publications;
    slot_index = slot_index + 1 == a.slot_count ? 0 : slot_index + 1;
  }
  if (t == kRecordWords) {
    a.state->publications = publications;
    a.state->slot = slot_index;
    a.state->step = step + 1;
  }
}

}  // namespace

cudaError_t LaunchPublish(const PublishLaunch& launch, cudaStream_t stream) {
  Publish<<<1, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
