// One CTA: reads and zeroes a block's counters, builds the record, writes it to the ring by the GPU writer's protocol (proto/lossgauge/ring/ring_abi.h).
// Nearly all of its time is memory latency, so there is one round of loads for everything, and each word of the record has a thread: most words are a
// counter or a counter added to a total, by a table; the few others have warps of their own. The last warp meanwhile stores the odd sequence word and
// waits for the system fence behind it.
#include "kernels/cuda/publish.h"

#include <cstddef>

#include "kernels/cuda/tally.cuh"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::cuda {
namespace {

constexpr int kRecordWords = LG_STEP_SLOT_BYTES / 8;
constexpr int kWordWarps = kRecordWords / 32, kSpecialWarps = 4, kFenceWarp = kWordWarps + kSpecialWarps;
constexpr int kBuilders = 32 * kFenceWarp, kThreads = kBuilders + 32;
static_assert(kRecordWords % 32 == 0, "a thread for each word of a record");
constexpr int kCounterWords = offsetof(DeviceCounters, place_lock) / 8;
static_assert(kCounterWords <= kBuilders, "a thread for each word of the counters");

#define LG_WORD(field) static_cast<int>(offsetof(lg_step_record, field) / 8)

// What a word of the record is made of.
struct WordRule {
  unsigned char kind;
  unsigned char counter;  // word of DeviceCounters
  unsigned short needs;   // LG_HAS_* without which it is 0
};
enum : unsigned char { kNothing, kCounter, kOne, kSpecial, kTotal = 16 };  // kTotal: added to the word before

struct WordRules {
  WordRule of[kRecordWords];
};
constexpr WordRules MakeWordRules() {
  WordRules rules{};
  constexpr int kCountsAt = offsetof(DeviceCounters, counts) / 8, kSumsAt = offsetof(DeviceCounters, sums) / 8;
  const auto count = [&](int word, Count which, int needs, int total) {
    rules.of[word] = {kCounter, static_cast<unsigned char>(kCountsAt + which), static_cast<unsigned short>(needs)};
    if (total >= 0) rules.of[total] = {kCounter | kTotal, static_cast<unsigned char>(kCountsAt + which), static_cast<unsigned short>(needs)};
  };
  const auto sum = [&](int word, Sum which, int needs, int total) {
    for (int i = 0; i < 2; ++i) {
      const auto counter = static_cast<unsigned char>(kSumsAt + 2 * which + i);
      rules.of[word + i] = {kCounter, counter, static_cast<unsigned short>(needs)};
      if (total >= 0) rules.of[total + i] = {kCounter | kTotal, counter, static_cast<unsigned short>(needs)};
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
  rules.of[LG_WORD(micro_batches)] = {kCounter, static_cast<unsigned char>(offsetof(DeviceCounters, micro_batches) / 8), 0};
  rules.of[LG_WORD(total_steps)] = {kOne | kTotal, 0, 0};
  rules.of[LG_WORD(total_nonfinite_steps)] = {kSpecial | kTotal, 0, 0};
  constexpr int kSpecials[] = {
      LG_WORD(sequence), LG_WORD(present), LG_WORD(step), LG_WORD(block), LG_WORD(phase), LG_WORD(boot_ns), LG_WORD(wall_ns), LG_WORD(denominator_min),
      LG_WORD(denominator_max), LG_WORD(log_z_max), LG_WORD(max_abs_logit), LG_WORD(grad_norm), LG_WORD(worst_row_nll), LG_WORD(worst_row_position),
      LG_WORD(worst_row_target), LG_WORD(worst_logit_position), LG_WORD(worst_logit_column), LG_WORD(first_nonfinite_row), LG_WORD(reported_loss),
      LG_WORD(reported_loss_auxiliary), LG_WORD(reported_loss_dtype), LG_WORD(reported_loss_interval), LG_WORD(learning_rate)};
  for (const int word : kSpecials) rules.of[word] = {kSpecial, 0, 0};
  return rules;
}
__device__ const WordRules kWordRules = MakeWordRules();

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
__device__ __forceinline__ bool InRange(int x, int size) { return static_cast<unsigned>(x) < static_cast<unsigned>(size); }
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
  double grad_norm, learning_rate, denominator;
  Word shares[kWordWarps + 1];
  unsigned other_blocks;
};

__device__ __forceinline__ Word WhatItHas(const DeviceCounters& c) {
  Word had = c.present;
  if (c.worst_logit.high != 0) had |= LG_HAS_WORST_LOGIT;
  if (c.worst_row.high != 0) had |= LG_HAS_WORST_ROW;
  if (c.first_nonfinite_row != 0) had |= LG_HAS_FIRST_NONFINITE_ROW;
  return had & ~(c.absent & kNeedsEveryLaunch);
}

// The words that are neither counters nor totals. One lane of each special warp; what is absent is 0.
__device__ __forceinline__ void BuildSpecials(const PublishLaunch& a, PublishShared& s, int warp, int block, long long step, Word sequence, Word had) {
  const DeviceCounters& c = s.in.counters;
  lg_step_record& r = s.out.record;
  if (warp == 0) {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    r.sequence = sequence;
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
  } else {
    const bool main = block == 0;  // what the job hands over goes into the main block's record
    Word present = had;
    r.grad_norm = main && a.grad_norm.given ? s.grad_norm : 0.;
    if (main && a.grad_norm.given) present |= LG_HAS_GRAD_NORM;
    r.learning_rate = main && a.learning_rate.given ? s.learning_rate : 0.;
    if (main && a.learning_rate.given) present |= LG_HAS_LEARNING_RATE;
    const bool reported = main && a.reported_given;
    r.reported_loss = reported ? a.reported_value : 0.;
    r.reported_loss_auxiliary = reported ? a.reported_auxiliary : 0.;
    r.reported_loss_dtype = reported ? a.reported_dtype : 0;
    r.reported_loss_interval = reported ? a.reported_interval : 0;
    if (reported) present |= LG_HAS_REPORTED_LOSS;
    double least = __longlong_as_double(static_cast<long long>(~c.denominator_min)), most = __longlong_as_double(static_cast<long long>(c.denominator_max));
    if (main && a.denominator.given) {
      const bool valid = s.denominator > 0. && s.denominator < INFINITY;  // from a pointer it may be anything
      present = valid ? present | LG_HAS_DENOMINATOR : present & ~static_cast<Word>(LG_HAS_DENOMINATOR);
      least = most = s.denominator;
    }
    const bool divided = (present & LG_HAS_DENOMINATOR) != 0;
    r.denominator_min = divided ? least : 0.;
    r.denominator_max = divided ? most : 0.;
    r.present = present;
    const auto bad = [](double x) { return !(fabs(x) < INFINITY); };
    const bool bad_gradient = (had & LG_HAS_LOGIT_GRAD) != 0 && c.counts[kNonfiniteGradRows] != 0;
    r.total_nonfinite_steps =
        c.counts[kNonfiniteRows] != 0 || bad_gradient || bad(r.grad_norm) || bad(r.reported_loss) || bad(r.learning_rate);  // of this step
  }
}

// A block's record. `counter` and `total` are this thread's word of the counters and of the totals. All threads.
__device__ __forceinline__ void PublishBlock(const PublishLaunch& a, PublishShared& s, int block, Word counter, Word total, WordRule rule, long long step,
                                             Word publications) {
  const int t = threadIdx.x, warp = t >> 5;
  unsigned long long* slot = reinterpret_cast<unsigned long long*>(a.slots + publications % a.slot_count * LG_STEP_SLOT_BYTES);
  const Word even = 2 * (publications + 1);
  Word word = 0;
  if (warp == kFenceWarp) {
    if (t == kBuilders) {
      StoreSystem(slot, even - 1);
      __threadfence_system();  // no payload word before the odd sequence word
    }
  } else {
    if (t < kCounterWords) {
      s.in.words[t] = counter;
      if (counter != 0) reinterpret_cast<Word*>(&a.counters[block])[t] = 0;
    }
    SyncBuilders();
    const Word had = WhatItHas(s.in.counters);
    if (warp >= kWordWarps && (t & 31) == 0) BuildSpecials(a, s, warp - kWordWarps, block, step, even, had);
    SyncBuilders();
    Word share = 0;
    if (warp < kWordWarps) {
      const int kind = rule.kind & ~kTotal;
      if (kind == kCounter) word = (had & rule.needs) == rule.needs ? s.in.words[rule.counter] : 0;
      else if (kind == kOne) word = 1;
      else if (kind == kSpecial) word = s.out.words[t];
      if (rule.kind & kTotal) word += total;
      // A 128-bit total's low word stands before its high word.
      const bool carries = (rule.kind & kTotal) != 0 && word < total;
      const bool carry = __shfl_up_sync(~0u, carries, 1);
      const bool high = t == LG_WORD(total_nll_sum) + 1 || t == LG_WORD(total_scored_nll_sum) + 1 || t == LG_WORD(total_z_loss_sum) + 1;
      if (high && carry) ++word;
      if (rule.kind & kTotal) reinterpret_cast<Word*>(&a.state->totals[block])[t] = word;
      if (t < kRecordWords - 1) share = lg_ring_checksum_share(word, static_cast<uint64_t>(t));
    } else if (t < kRecordWords + 2) {
      share = lg_ring_checksum_share(a.segment_id[t - kRecordWords], static_cast<uint64_t>(t));
    }
    if (warp <= kWordWarps) {
      share = WarpSum(share);
      if ((t & 31) == 0) s.shares[warp] = share;
    }
  }
  __syncthreads();
  if (t == kRecordWords - 1) {
    for (int i = 0; i <= kWordWarps; ++i) word += s.shares[i];
  }
  if (t > 0 && t < kRecordWords) StoreSystem(slot + t, word);
  __syncthreads();
  if (t != 0) return;
  __threadfence_system();  // every payload word, by whatever thread of the CTA, before the even sequence word
  StoreSystem(slot, even);
  __threadfence_system();
  StoreSystem(a.cursor, publications + 1);
  if (block == 0) StoreSystem(reinterpret_cast<unsigned long long*>(a.published_step), static_cast<unsigned long long>(step));
}
static_assert(LG_WORD(total_nll_sum) / 32 == (LG_WORD(total_z_loss_sum) + 1) / 32, "low and high words of a total are in one warp");

__global__ void __launch_bounds__(kThreads) Publish(const __grid_constant__ PublishLaunch a) {
  __shared__ PublishShared s;
  const int t = threadIdx.x;
  const auto counter_word = [&](int block) { return t < kCounterWords ? reinterpret_cast<const Word*>(&a.counters[block])[t] : 0; };
  const WordRule rule = t < kRecordWords ? kWordRules.of[t] : WordRule{};
  const bool is_total = t < kRecordWords && InRange(t - LG_WORD(total_steps), LG_WORD(total_nonfinite_steps) + 1 - LG_WORD(total_steps));
  const auto total_word = [&](int block) { return is_total ? reinterpret_cast<const Word*>(&a.state->totals[block])[t] : 0; };
  const Word counter = counter_word(0), total = total_word(0);
  const bool added_to = t > 0 && t < a.block_count && a.counters[t].micro_batches != 0;
  const long long step = a.set_step >= 0 ? a.set_step : a.state->step;
  Word publications = a.state->publications;
  if (t == kThreads - 1) s.grad_norm = ReadScalar(a.grad_norm);
  if (t == kThreads - 2) s.learning_rate = ReadScalar(a.learning_rate);
  if (t == kThreads - 3) s.denominator = ReadScalar(a.denominator);
  const unsigned others = __ballot_sync(~0u, added_to);
  if (t == 0) s.other_blocks = others;
  __syncthreads();
  // The main block goes last: who has its record of a step, has all of the step.
  for (unsigned left = s.other_blocks; left != 0; ++publications) {
    const int block = 31 - __clz(left);
    left ^= 1u << block;
    PublishBlock(a, s, block, counter_word(block), total_word(block), rule, step, publications);
  }
  if (t == 32) {
    a.state->publications = publications + 1;
    a.state->step = step + 1;
  }
  PublishBlock(a, s, 0, counter, total, rule, step, publications);
}

}  // namespace

cudaError_t LaunchPublish(const PublishLaunch& launch, cudaStream_t stream) {
  Publish<<<1, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
