// One CTA of 128 threads: reads and zeroes a block's counters, builds the record in shared memory, writes it to the ring by the GPU writer's protocol
// (proto/lossgauge/ring/ring_abi.h). Most of its time is memory latency, so everything that can be loaded at once is, and words are built by a thread each.
#include "kernels/cuda/publish.h"

#include <cstddef>

#include "kernels/cuda/tally.cuh"
#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRecordWords = LG_STEP_SLOT_BYTES / 8;
static_assert(kRecordWords <= kThreads, "a thread for each word of a record");
constexpr int kCounterWords = offsetof(DeviceCounters, place_lock) / 8;
static_assert(kCounterWords <= kThreads, "a thread for each word of the counters");

#define LG_WORD(field) static_cast<int>(offsetof(lg_step_record, field) / 8)

__device__ __forceinline__ double ReadScalar(const HandedScalar& s) {
  if (s.pointer == nullptr) return s.value;
  return s.is_fp64 ? *static_cast<const double*>(s.pointer) : static_cast<double>(*static_cast<const float*>(s.pointer));
}
__device__ __forceinline__ float FromOrderedBits(unsigned x) { return __uint_as_float(x & 0x80000000u ? x & 0x7fffffffu : ~x); }
__device__ __forceinline__ long long PlacePosition(const Place& p) {
  return static_cast<long long>(kPlaceMask - ((p.high & 0xffffffffull) << 16 | p.low >> 48));
}

// Terms that must cover every finite token to mean anything: absent unless every launch with unmasked tokens had them.
constexpr unsigned long long kNeedsEveryLaunch = LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD | LG_HAS_MASS | LG_HAS_TARGET_BYTES;

// The words that stem from loss calls, apart from plain copies; one thread each.
__device__ void BuildWord(const DeviceCounters& c, unsigned long long present, int task, lg_step_record* r) {
  const auto has = [present](unsigned long long bits) { return (present & bits) == bits; };
  const auto sum = [&](Sum s, bool wanted) { return wanted ? lg_fixed128_make(static_cast<int64_t>(c.sums[s].hi), c.sums[s].lo) : lg_fixed128_make(0, 0); };
  switch (task) {
    case 0: r->nll_sum = sum(kNllSum, true); break;
    case 1: r->objective_sum = sum(kObjectiveSum, has(LG_HAS_OBJECTIVE)); break;
    case 2: r->z_loss_sum = sum(kZLossSum, has(LG_HAS_OBJECTIVE)); break;
    case 3: r->scored_nll_sum = sum(kScoredNllSum, has(LG_HAS_TARGET_BYTES)); break;
    case 4: r->log_z_sum = sum(kLogZSum, has(LG_HAS_LOGITS)); break;
    case 5: r->log_z_sq_sum = sum(kLogZSqSum, has(LG_HAS_LOGITS)); break;
    case 6: r->logit_grad_sq_sum = sum(kLogitGradSqSum, has(LG_HAS_LOGIT_GRAD)); break;
    case 7: r->probability_mass = sum(kProbabilityMass, has(LG_HAS_MASS)); break;
    case 8: r->log_z_max = c.log_z_max != 0 && has(LG_HAS_LOGITS) ? FromOrderedBits(static_cast<unsigned>(c.log_z_max)) : 0.; break;
    case 9:
      if (has(LG_HAS_WORST_LOGIT)) {
        r->max_abs_logit = FromOrderedBits(static_cast<unsigned>(c.worst_logit.high >> 32));
        r->worst_logit_position = PlacePosition(c.worst_logit);
        r->worst_logit_column = static_cast<long long>(kPlaceMask - (c.worst_logit.low & kPlaceMask));
      }
      break;
    case 10:
      if (has(LG_HAS_WORST_ROW)) {
        r->worst_row_nll = FromOrderedBits(static_cast<unsigned>(c.worst_row.high >> 32));
        r->worst_row_position = PlacePosition(c.worst_row);
        r->worst_row_target = static_cast<long long>(c.worst_row.low & kPlaceMask);
      }
      break;
    case 11: r->first_nonfinite_row = c.first_nonfinite_row != 0 ? static_cast<long long>(kPlaceMask + 1 - c.first_nonfinite_row) : 0; break;
    case 12: r->tokens = c.counts[kTokens]; break;
    case 13: r->unmasked_tokens = c.counts[kUnmaskedTokens]; break;
    case 14: r->finite_tokens = c.counts[kFiniteTokens]; break;
    case 15: r->nonfinite_rows = c.counts[kNonfiniteRows]; break;
    case 16: r->bad_targets = c.counts[kBadTargets]; break;
    case 17: r->clamped_rows = c.counts[kClampedRows]; break;
    case 18: r->target_bytes = has(LG_HAS_TARGET_BYTES) ? c.counts[kTargetBytes] : 0; break;
    case 19: r->nonfinite_grad_rows = has(LG_HAS_LOGIT_GRAD) ? c.counts[kNonfiniteGradRows] : 0; break;
    case 20: r->mass_error_rows = has(LG_HAS_MASS) ? c.counts[kMassErrorRows] : 0; break;
    case 21: r->target_hits = c.counts[kTargetHits]; break;
    case 22: r->correct_tokens = c.counts[kCorrectTokens]; break;
    case 23: r->mask_fingerprint = c.counts[kMaskFingerprint]; break;
    case 24: r->target_fingerprint = c.counts[kTargetFingerprint]; break;
    case 25: r->micro_batches = c.micro_batches; break;
    default: break;
  }
}
constexpr int kTasks = 26;

// What the job handed over for the step; one thread each.
__device__ void TakeHandedOver(const PublishLaunch& a, int task, lg_step_record* r, unsigned long long* present) {
  if (task == 0 && a.grad_norm.given) {
    r->grad_norm = ReadScalar(a.grad_norm);
    atomicOr(present, static_cast<unsigned long long>(LG_HAS_GRAD_NORM));
  } else if (task == 1 && a.learning_rate.given) {
    r->learning_rate = ReadScalar(a.learning_rate);
    atomicOr(present, static_cast<unsigned long long>(LG_HAS_LEARNING_RATE));
  } else if (task == 2 && a.denominator.given) {
    const double d = ReadScalar(a.denominator);
    if (d > 0. && d < INFINITY) {  // from a pointer it may be anything
      r->denominator_min = r->denominator_max = d;
      atomicOr(present, static_cast<unsigned long long>(LG_HAS_DENOMINATOR));
    }
  } else if (task == 3 && a.reported_given) {
    r->reported_loss = a.reported_value;
    r->reported_loss_auxiliary = a.reported_auxiliary;
    r->reported_loss_dtype = a.reported_dtype;
    r->reported_loss_interval = a.reported_interval;
    atomicOr(present, static_cast<unsigned long long>(LG_HAS_REPORTED_LOSS));
  }
}

__device__ void AddTotals(const lg_step_record& r, int task, lg_step_record* total) {
  const auto add = [](lg_fixed128* t, const lg_fixed128& x) { *t = lg_fixed128_add(*t, x); };
  switch (task) {
    case 0: total->total_steps += 1; break;
    case 1: total->total_tokens += r.tokens; break;
    case 2: total->total_unmasked_tokens += r.unmasked_tokens; break;
    case 3: total->total_finite_tokens += r.finite_tokens; break;
    case 4: total->total_nonfinite_rows += r.nonfinite_rows; break;
    case 5: total->total_bad_targets += r.bad_targets; break;
    case 6: total->total_target_bytes += r.target_bytes; break;
    case 7: total->total_nonfinite_grad_rows += r.nonfinite_grad_rows; break;
    case 8: add(&total->total_nll_sum, r.nll_sum); break;
    case 9: add(&total->total_scored_nll_sum, r.scored_nll_sum); break;
    case 10: add(&total->total_z_loss_sum, r.z_loss_sum); break;
    case 11: total->total_correct_tokens += r.correct_tokens; break;
    case 12: total->total_clamped_rows += r.clamped_rows; break;
    case 13: total->total_mass_error_rows += r.mass_error_rows; break;
    case 14: {
      const auto bad = [](double x) { return !(fabs(x) < INFINITY); };
      total->total_nonfinite_steps += r.nonfinite_rows != 0 || r.nonfinite_grad_rows != 0 || bad(r.grad_norm) || bad(r.reported_loss) || bad(r.learning_rate);
      break;
    }
    default: break;
  }
}
constexpr int kTotalTasks = 15;
constexpr int kFirstTotalWord = LG_WORD(total_steps), kTotalWords = LG_WORD(total_nonfinite_steps) + 1 - kFirstTotalWord;

__device__ __forceinline__ bool InRange(int x, int size) { return static_cast<unsigned>(x) < static_cast<unsigned>(size); }
__device__ __forceinline__ void StoreSystem(unsigned long long* to, unsigned long long x) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

__global__ void __launch_bounds__(kThreads) Publish(const __grid_constant__ PublishLaunch a) {
  __shared__ union {
    DeviceCounters counters;
    Word words[kCounterWords];
  } in;
  __shared__ union {
    lg_step_record record;
    Word words[kRecordWords];
  } out;
  __shared__ unsigned long long present;
  __shared__ Word shares[kThreads / 32];
  const int t = threadIdx.x;
  const long long step = a.set_step >= 0 ? a.set_step : a.state->step;
  unsigned long long publications = a.state->publications;

  // The main block goes last: who has its record of a step, has all of the step.
  for (int block = a.block_count - 1; block >= 0; --block) {
    DeviceCounters* counters = &a.counters[block];
    Word* from = reinterpret_cast<Word*>(counters);
    if (t < kCounterWords) in.words[t] = from[t];
    lg_step_record* totals = &a.state->totals[block];
    if (t < kRecordWords) out.words[t] = InRange(t - kFirstTotalWord, kTotalWords) ? reinterpret_cast<Word*>(totals)[t] : 0;
    if (t == 0) present = 0;
    __syncthreads();
    const bool added_to = in.counters.micro_batches != 0;
    if (!added_to && block != 0) {
      __syncthreads();
      continue;
    }
    if (t < kCounterWords && in.words[t] != 0) from[t] = 0;
    unsigned long long had = in.counters.present;
    if (in.counters.worst_logit.high != 0) had |= LG_HAS_WORST_LOGIT;
    if (in.counters.worst_row.high != 0) had |= LG_HAS_WORST_ROW;
    if (in.counters.first_nonfinite_row != 0) had |= LG_HAS_FIRST_NONFINITE_ROW;
    had &= ~(in.counters.absent & kNeedsEveryLaunch);
    lg_step_record* r = &out.record;
    if (t < kTasks) BuildWord(in.counters, had, t, r);
    if (t == 32 && (had & LG_HAS_DENOMINATOR) != 0 && !(block == 0 && a.denominator.given)) {
      r->denominator_min = __longlong_as_double(static_cast<long long>(~in.counters.denominator_min));
      r->denominator_max = __longlong_as_double(static_cast<long long>(in.counters.denominator_max));
    }
    if (t == 64) {
      unsigned long long now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      r->step = step;
      r->block = static_cast<uint64_t>(block);
      r->phase = a.phase;
      r->wall_ns = static_cast<int64_t>(now);
      r->boot_ns = static_cast<int64_t>(now) + a.boot_minus_global_ns;
      r->sequence = 2 * (publications + 1);
    }
    if (block == 0 && t >= 96 && t < 100) TakeHandedOver(a, t - 96, r, &present);
    __syncthreads();
    if (t < kTotalTasks) AddTotals(*r, t, r);
    if (t == 64) {
      if (block == 0 && a.denominator.given) had &= ~static_cast<unsigned long long>(LG_HAS_DENOMINATOR);
      r->present = had | present;
    }
    __syncthreads();
    if (InRange(t - kFirstTotalWord, kTotalWords)) reinterpret_cast<Word*>(totals)[t] = out.words[t];
    Word share = t < kRecordWords - 1 ? lg_ring_checksum_share(out.words[t], static_cast<uint64_t>(t)) : 0;
    if (t == kRecordWords) share = lg_ring_checksum_share(a.segment_id[0], kRecordWords);
    if (t == kRecordWords + 1) share = lg_ring_checksum_share(a.segment_id[1], kRecordWords + 1);
    share = WarpSum(share);
    if ((t & 31) == 0) shares[t >> 5] = share;
    unsigned long long* slot = reinterpret_cast<unsigned long long*>(a.slots + publications % a.slot_count * LG_STEP_SLOT_BYTES);
    const unsigned long long even = 2 * (publications + 1);
    if (t == 0) {
      StoreSystem(slot, even - 1);
      __threadfence_system();  // no payload word before the odd sequence word
    }
    __syncthreads();
    if (t == 0) out.words[kRecordWords - 1] = shares[0] + shares[1] + shares[2] + shares[3];
    __syncthreads();
    if (t > 0 && t < kRecordWords) StoreSystem(slot + t, out.words[t]);
    __threadfence_system();  // every payload word before the even sequence word
    __syncthreads();
    ++publications;
    if (t == 0) {
      StoreSystem(slot, even);
      StoreSystem(a.cursor, publications);  // a hint; a reader decides by the sequence word
      if (block == 0) StoreSystem(reinterpret_cast<unsigned long long*>(a.published_step), static_cast<unsigned long long>(step));
    }
    __syncthreads();
  }
  if (t == 0) {
    a.state->publications = publications;
    a.state->step = step + 1;
  }
}

}  // namespace

cudaError_t LaunchPublish(const PublishLaunch& launch, cudaStream_t stream) {
  Publish<<<1, kThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace lossgauge::cuda
