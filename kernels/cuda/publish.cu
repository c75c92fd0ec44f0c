// One CTA: reads and zeroes a block's counters, builds the record, writes it to the ring by the GPU writer's protocol (proto/lossgauge/ring/ring_abi.h).
// Nearly all of its time is memory latency, so there is one round of loads for everything, and each word of the record has a thread: most words are a
// counter or a counter added to a total, by a table; the few others are built by warps of their own beside them. The last warp keeps the protocol: the
// odd sequence word as soon as it knows the slot, then what must stand behind the payload.
#include "kernels/cuda/publish.h"

#include <cstddef>

#include "kernels/cuda/tally.cuh"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::cuda {
namespace {

constexpr int kRecordWords = LG_STEP_SLOT_BYTES / 8;
constexpr int kWordWarps = kRecordWords / 32, kSpecialWarps = 5, kSequenceWarp = kWordWarps + kSpecialWarps;
constexpr int kBuilders = 32 * kSequenceWarp, kThreads = kBuilders + 32;
static_assert(kRecordWords % 32 == 0, "a thread for each word of a record");
constexpr int kCounterWords = offsetof(DeviceCounters, place_lock) / 8;
static_assert(kCounterWords <= kBuilders, "a thread for each word of the counters");

#define LG_WORD(field) static_cast<int>(offsetof(lg_step_record, field) / 8)

// What a thread of the builders makes, and of what.
struct WordRule {
  unsigned char kind;
  unsigned char word;     // of the record
  unsigned char counter;  // word of DeviceCounters
  unsigned char total;    // 1: added to the total before it, which goes on from here
  unsigned needs;         // LG_HAS_* without which it is 0
};
enum : unsigned char { kNobody, kNothing, kCounter, kOne, kSpecial };  // kNobody: another thread's word, or none; kNothing: 0

struct WordRules {
  WordRule of[kBuilders];
};
constexpr WordRules MakeWordRules() {
  WordRules rules{};
  constexpr int kCountsAt = offsetof(DeviceCounters, counts) / 8, kSumsAt = offsetof(DeviceCounters, sums) / 8;
  for (int word = 0; word < kRecordWords; ++word) rules.of[word] = {kNothing, static_cast<unsigned char>(word), 0, 0, 0};
  const auto set = [&](int word, int counter, int needs, bool total) {
    rules.of[word] = {kCounter, static_cast<unsigned char>(word), static_cast<unsigned char>(counter), total, static_cast<unsigned>(needs)};
  };
  const auto count = [&](int word, Count which, int needs, int total) {
    set(word, kCountsAt + which, needs, false);
    if (total >= 0) set(total, kCountsAt + which, needs, true);
  };
  const auto sum = [&](int word, Sum which, int needs, int total) {
    for (int i = 0; i < 2; ++i) {
      set(word + i, kSumsAt + 2 * which + i, needs, false);
      if (total >= 0) set(total + i, kSumsAt + 2 * which + i, needs, true);
    }
  };
  count(LG_WORD(tokens), kTokens, 0, LG_WORD(total_tokens));
  count(LG_WORD(unmasked_tokens), kUnmaskedTokens, 0, LG_WORD(total_unmasked_tokens));
  count(LG_WORD(finite_tokens), kFiniteTokens, 0, LG_WORD(total_finite_tokens));
  count(LG_WORD(nonfinite_rows), kNonfiniteRows, 0, LG_WORD(total_nonfinite_rows));
  count(LG_WORD(bad_targets), kBadTargets, 0, LG_WORD(total_bad_targets));
  count(LG_WORD(clamped_rows), kClampedRows, 0, LG_WORD(total_clamped_rows));
  count(LG_WORD(target_bytes), kTargetBytes, LG_HAS_TARGET_BYTES, LG_WORD(total_target_bytes));
  count(LG_WORD(nonfinite_grad_rows), kNonfiniteGradRows, LG_HAS_LOGIT_GRAD, LG_WORD(total_nonfinite_grad_rows));
  count(LG_WORD(mass_error_rows), kMassErrorRows, LG_HAS_MASS, LG_WORD(total_mass_error_rows));
  count(LG_WORD(target_hits), kTargetHits, 0, -1);
  count(LG_WORD(correct_tokens), kCorrectTokens, 0, LG_WORD(total_correct_tokens));
  count(LG_WORD(mask_fingerprint), kMaskFingerprint, 0, -1);
  count(LG_WORD(target_fingerprint), kTargetFingerprint, 0, -1);
  sum(LG_WORD(nll_sum), kNllSum, 0, LG_WORD(total_nll_sum));
  sum(LG_WORD(objective_sum), kObjectiveSum, LG_HAS_OBJECTIVE, -1);
  sum(LG_WORD(z_loss_sum), kZLossSum, LG_HAS_OBJECTIVE, LG_WORD(total_z_loss_sum));
  sum(LG_WORD(scored_nll_sum), kScoredNllSum, LG_HAS_TARGET_BYTES, LG_WORD(total_scored_nll_sum));
  sum(LG_WORD(log_z_sum), kLogZSum, LG_HAS_LOGITS, -1);
  sum(LG_WORD(log_z_sq_sum), kLogZSqSum, LG_HAS_LOGITS, -1);
  sum(LG_WORD(logit_grad_sq_sum), kLogitGradSqSum, LG_HAS_LOGIT_GRAD, -1);
  sum(LG_WORD(probability_mass), kProbabilityMass, LG_HAS_MASS, -1);
  set(LG_WORD(micro_batches), offsetof(DeviceCounters, micro_batches) / 8, 0, false);
  rules.of[LG_WORD(total_steps)].kind = kOne;
  rules.of[LG_WORD(total_steps)].total = 1;
  rules.of[LG_WORD(sequence)].kind = rules.of[kRecordWords - 1].kind = kNobody;  // the sequence warp's
  constexpr int kSpecials[kSpecialWarps][8] = {
      {LG_WORD(step), LG_WORD(block), LG_WORD(phase), LG_WORD(boot_ns), LG_WORD(wall_ns), LG_WORD(log_z_max), LG_WORD(first_nonfinite_row)},
      {LG_WORD(max_abs_logit), LG_WORD(worst_logit_position), LG_WORD(worst_logit_column)},
      {LG_WORD(worst_row_nll), LG_WORD(worst_row_position), LG_WORD(worst_row_target)},
      {LG_WORD(denominator_min), LG_WORD(denominator_max), LG_WORD(present)},
      {LG_WORD(total_nonfinite_steps), LG_WORD(grad_norm), LG_WORD(learning_rate), LG_WORD(reported_loss), LG_WORD(reported_loss_auxiliary),
       LG_WORD(reported_loss_dtype), LG_WORD(reported_loss_interval)}};
  for (int warp = 0; warp < kSpecialWarps; ++warp) {
    for (int i = 0; i < 8 && kSpecials[warp][i] != 0; ++i) {
      const int word = kSpecials[warp][i];
      rules.of[word].kind = kNobody;
      rules.of[kRecordWords + 32 * warp + i] = {kSpecial, static_cast<unsigned char>(word), 0, word == LG_WORD(total_nonfinite_steps), 0};
    }
  }
  return rules;
}
__device__ const WordRules kWordRules = MakeWordRules();
constexpr int kNonfiniteStepsThread = kRecordWords + 32 * 4;

// Terms that must cover every finite token to mean anything: absent unless every launch with unmasked tokens had them.
constexpr Word kNeedsEveryLaunch = LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD | LG_HAS_MASS | LG_HAS_TARGET_BYTES;

__device__ __forceinline__ double ReadScalar(const HandedScalar& s) {
  if (s.pointer == nullptr) return s.value;
  return s.is_fp64 ? *static_cast<const double*>(s.pointer) : static_cast<double>(*static_cast<const float*>(s.pointer));
}
__device__ __forceinline__ float FromOrderedBits(unsigned x) { return __uint_as_float(x & 0x80000000u ? x & 0x7fffffffu : ~x); }
__device__ __forceinline__ long long PlacePosition(const Place& p) {
  return static_cast<long long>(kPlaceMask - ((p.high & 0xffffffffull) << 16 | p.low >> 48));
}
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
__device__ __forceinline__ void SyncBuilders() { asm volatile("bar.sync 1, %0;" ::"n"(kBuilders) : "memory"); }

struct PublishShared {
  union {
    DeviceCounters counters;
    Word words[kCounterWords];
  } in;
  union {
    lg_step_record record;  // only the special words are built here
    Word words[kRecordWords];
  } out;
  Word shares[kSequenceWarp];
};

// Sum of the lanes' values, mod 2^64, in the first lane. In three parts that a 32-bit addition of 32 of them cannot overflow: half the latency of shuffles.
__device__ __forceinline__ Word WarpSumByParts(Word x) {
  const unsigned low = __reduce_add_sync(~0u, static_cast<unsigned>(x) & 0x3fffffu);
  const unsigned middle = __reduce_add_sync(~0u, static_cast<unsigned>(x >> 22) & 0x3fffffu);
  const unsigned high = __reduce_add_sync(~0u, static_cast<unsigned>(x >> 44));
  return low + (static_cast<Word>(middle) << 22) + (static_cast<Word>(high) << 44);
}

__device__ __forceinline__ Word WhatItHas(const DeviceCounters& c) {
  Word had = c.present;
  if (c.worst_logit.high != 0) had |= LG_HAS_WORST_LOGIT;
  if (c.worst_row.high != 0) had |= LG_HAS_WORST_ROW;
  if (c.first_nonfinite_row != 0) had |= LG_HAS_FIRST_NONFINITE_ROW;
  return had & ~(c.absent & kNeedsEveryLaunch);
}

// The words that are neither counters nor totals. One lane of each special warp; what is absent is 0.
__device__ __forceinline__ void BuildSpecials(const PublishLaunch& a, PublishShared& s, int warp, int block, long long step, Word had, double handed,
                                              double learning_rate) {
  const DeviceCounters& c = s.in.counters;
  lg_step_record& r = s.out.record;
  if (warp == 0) {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    r.step = step;
    r.block = static_cast<uint64_t>(block);
    r.phase = a.phase;
    r.wall_ns = static_cast<int64_t>(now);
    r.boot_ns = static_cast<int64_t>(now) + a.boot_minus_global_ns;
    r.log_z_max = c.log_z_max != 0 && (had & LG_HAS_LOGITS) != 0 ? FromOrderedBits(static_cast<unsigned>(c.log_z_max)) : 0.;
    r.first_nonfinite_row = c.first_nonfinite_row != 0 ? static_cast<long long>(kPlaceMask + 1 - c.first_nonfinite_row) : 0;
  } else if (warp == 1) {
    const bool has = (had & LG_HAS_WORST_LOGIT) != 0;
    r.max_abs_logit = has ? FromOrderedBits(static_cast<unsigned>(c.worst_logit.high >> 32)) : 0.;
    r.worst_logit_position = has ? PlacePosition(c.worst_logit) : 0;
    r.worst_logit_column = has ? static_cast<long long>(kPlaceMask - (c.worst_logit.low & kPlaceMask)) : 0;
  } else if (warp == 2) {
    const bool has = (had & LG_HAS_WORST_ROW) != 0;
    r.worst_row_nll = has ? FromOrderedBits(static_cast<unsigned>(c.worst_row.high >> 32)) : 0.;
    r.worst_row_position = has ? PlacePosition(c.worst_row) : 0;
    r.worst_row_target = has ? static_cast<long long>(c.worst_row.low & kPlaceMask) : 0;
  } else if (warp == 3) {
    const bool main = block == 0;  // what the job hands over goes into the main block's record
    Word present = had;
    if (main && a.grad_norm.given) present |= LG_HAS_GRAD_NORM;
    if (main && a.learning_rate.given) present |= LG_HAS_LEARNING_RATE;
    if (main && a.reported_given) present |= LG_HAS_REPORTED_LOSS;
    double least = __longlong_as_double(static_cast<long long>(~c.denominator_min)), most = __longlong_as_double(static_cast<long long>(c.denominator_max));
    if (main && a.denominator.given) {
      const bool valid = handed > 0. && handed < INFINITY;  // from a pointer it may be anything
      present = valid ? present | LG_HAS_DENOMINATOR : present & ~static_cast<Word>(LG_HAS_DENOMINATOR);
      least = most = handed;
    }
    const bool divided = (present & LG_HAS_DENOMINATOR) != 0;
    r.denominator_min = divided ? least : 0.;
    r.denominator_max = divided ? most : 0.;
    r.present = present;
  } else {
    const bool main = block == 0, reported = main && a.reported_given;
    const double grad_norm = main && a.grad_norm.given ? handed : 0., rate = main && a.learning_rate.given ? learning_rate : 0.;
    const double loss = reported ? a.reported_value : 0.;
    r.grad_norm = grad_norm;
    r.learning_rate = rate;
    r.reported_loss = loss;
    r.reported_loss_auxiliary = reported ? a.reported_auxiliary : 0.;
    r.reported_loss_dtype = reported ? a.reported_dtype : 0;
    r.reported_loss_interval = reported ? a.reported_interval : 0;
    const auto bad = [](double x) { return !(fabs(x) < INFINITY); };
    const bool bad_gradient = (had & LG_HAS_LOGIT_GRAD) != 0 && c.counts[kNonfiniteGradRows] != 0;
    r.total_nonfinite_steps = c.counts[kNonfiniteRows] != 0 || bad_gradient || bad(grad_norm) || bad(loss) || bad(rate);  // of this step
  }
}

static_assert(LG_WORD(total_nll_sum) / 32 == (LG_WORD(total_z_loss_sum) + 1) / 32, "low and high words of a total are in one warp");

__global__ void __launch_bounds__(kThreads) Publish(const __grid_constant__ PublishLaunch a) {
  __shared__ PublishShared s;
  const int t = threadIdx.x, warp = t >> 5, lane = t & 31;
  const WordRule rule = t < kBuilders ? kWordRules.of[t] : WordRule{};
  // All loads before the first use of any.
  const int total_at = t < kRecordWords ? t : t == kNonfiniteStepsThread ? LG_WORD(total_nonfinite_steps) : -1;
  const auto counter_word = [&](int block) { return t < kCounterWords ? reinterpret_cast<const Word*>(&a.counters[block])[t] : 0; };
  const auto total_word = [&](int block) { return total_at >= 0 ? reinterpret_cast<const Word*>(&a.state->totals[block])[total_at] : 0; };
  const long long state_step = a.state->step;
  Word publications = a.state->publications, slot_index = a.state->slot;
  Word counter = counter_word(0), total = total_word(0);
  const bool added_to = lane > 0 && lane < a.block_count && a.counters[lane].micro_batches != 0;
  double handed = 0., learning_rate = 0.;
  if (t == kNonfiniteStepsThread) handed = ReadScalar(a.grad_norm), learning_rate = ReadScalar(a.learning_rate);
  if (t == kNonfiniteStepsThread - 32) handed = ReadScalar(a.denominator);
  const long long step = a.set_step >= 0 ? a.set_step : state_step;
  if (publications == PublisherState::kClosed) return;

  // The main block goes last: who has its record of a step, has all of the step.
  unsigned left = __ballot_sync(~0u, added_to) | 1u;
  for (bool first = true; left != 0; first = false) {
    const int block = 31 - __clz(static_cast<int>(left));
    left ^= 1u << block;
    if (!first || block != 0) {
      if (!first) __syncthreads();  // what is shared has been read
      counter = counter_word(block), total = total_word(block);
    }
    unsigned long long* const slot = reinterpret_cast<unsigned long long*>(a.slots + slot_index * LG_STEP_SLOT_BYTES);
    const Word even = 2 * (publications + 1);
    if (warp == kSequenceWarp) {
      if (lane == 0) {
        StoreSystem(slot, even - 1);
        ReleaseToSystem();  // no payload word before the odd sequence word
      }
      __syncwarp();
      asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
    } else {
      if (t < kCounterWords) {
        s.in.words[t] = counter;
        if (counter != 0) reinterpret_cast<Word*>(&a.counters[block])[t] = 0;
      }
      SyncBuilders();
      const Word had = WhatItHas(s.in.counters);
      if (warp >= kWordWarps) {
        if (lane == 0) BuildSpecials(a, s, warp - kWordWarps, block, step, had, handed, learning_rate);
        __syncwarp();
      }
      Word word = 0;
      if (rule.kind == kCounter) word = (had & rule.needs) == rule.needs ? s.in.words[rule.counter] : 0;
      else if (rule.kind == kOne) word = 1;
      else if (rule.kind == kSpecial) word = s.out.words[rule.word];
      if (rule.total) word += total;
      if (warp < kWordWarps) {
        // A 128-bit total's low word stands before its high word.
        const bool carry = __shfl_up_sync(~0u, rule.total && word < total, 1);
        const bool high = t == LG_WORD(total_nll_sum) + 1 || t == LG_WORD(total_scored_nll_sum) + 1 || t == LG_WORD(total_z_loss_sum) + 1;
        if (high && carry) ++word;
      }
      const Word share = WarpSumByParts(rule.kind != kNobody ? lg_ring_checksum_share(word, rule.word) : 0);
      if (lane == 0) s.shares[warp] = share;
      asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
      if (rule.kind != kNobody) StoreSystem(slot + rule.word, word);
      if (rule.total) reinterpret_cast<Word*>(&a.state->totals[block])[rule.word] = word;
    }
    __syncthreads();
    if (t == kBuilders) {
      Word checksum = a.segment_share + lg_ring_checksum_share(even, 0);
#pragma unroll
      for (int i = 0; i < kSequenceWarp; ++i) checksum += s.shares[i];
      StoreSystem(slot + kRecordWords - 1, checksum);
      ReleaseToSystem();  // every payload word, by whatever thread of the CTA, before the even sequence word
      StoreSystem(slot, even);
      ReleaseToSystem();
      StoreSystem(a.cursor, publications + 1);
      if (block == 0) StoreSystem(reinterpret_cast<unsigned long long*>(a.published_step), static_cast<unsigned long long>(step));
    }
    ++publications;
    slot_index = slot_index + 1 == a.slot_count ? 0 : slot_index + 1;
  }
  if (t == 0) {
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
