// Second kernel of the vocabulary-parallel loss for long rows with a gradient: as ShardFinishKernel, through a ring of slots
// (shard_ring_layout.cuh).
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARD_RING_FINISH_CUH_
#define LOSSGAUGE_KERNELS_CUDA_SHARD_RING_FINISH_CUH_

#include "kernels/cuda/shard_finish.cuh"
#include "kernels/cuda/shard_ring_layout.cuh"
#include "kernels/cuda/stage_math.cuh"

namespace lossgauge::cuda {

// What sweepers need of a row.
template <class T>
struct alignas(16) SweepPlan {
  RowPart part;
  RowGradient gradient;
  Exponential<T> exponential;
  float scale, restore;
  float max_abs;  // of these columns
  RowKind kind;
  bool live, look;  // is loaded; the place of max_abs is wanted
  bool fills_zero;  // poisoned, and upstream is 0
};

// By the lane that has merged the row.
template <class C>
__device__ __forceinline__ void MakePlan(const ShardLaunch& a, const WholeRow& m, double denominator, bool look, SweepPlan<typename C::T>* plan) {
  using T = typename C::T;
  plan->part = MakeRowPart<C>(a.loss, static_cast<int>(m.row), m.local_target, 0.f, 0);
  const float upstream = m.live || m.unproven ? ReadScale(a.loss, m.row) : 1.f;
  const Factor factor = MakeFactor<T>(upstream, denominator, 1.);
  GradientSweep<T, C::SIGNALS> sweep(MakeRowGradient(m.sums, factor, a.loss.label_smoothing, a.loss.z_loss_weight, static_cast<int>(a.own.vocab_size), 1.),
                                     UnscaledSlopes());
  plan->gradient = sweep.g;
  plan->exponential = sweep.exponential;
  plan->scale = sweep.scale;
  plan->restore = factor.restore;
  plan->max_abs = m.max_abs;
  plan->kind = m.kind;
  plan->live = m.live;
  plan->look = look;
  plan->fills_zero = upstream == 0.f;
}

// Lowest column with |z| == max_abs among a sweeper's units of a slot, into *column if it is lower. For few rows.
template <class C>
static __device__ __noinline__ void LookInSlot(RowPart part, uint32_t data, int first, int w, int lane, int vocab, float max_abs, int* column) {
  using E = Element<typename C::T>;
  constexpr int kElements = kVectorElements<typename C::T>;
  const unsigned k = min(static_cast<unsigned>(C::UCAP), static_cast<unsigned>(part.units() - first));
  const int end = first + static_cast<int>(static_cast<unsigned>(w + 1) * k / C::G);
  int lowest = INT_MAX;
  for (int u = first + static_cast<int>(static_cast<unsigned>(w) * k / C::G); u < end; ++u) {
    const int vector = u * kUnitVectors + lane;
    if (vector >= part.vectors) continue;
    const uint4 q = LoadShared16(data + (u - first) * kUnitBytes);
    const uint32_t* word = &q.x;
    for (int i = 0; i < kElements; ++i) {
      const int c = part.column + vector * kElements + i;
      if (static_cast<unsigned>(c) < static_cast<unsigned>(vocab) && fabsf(E::Get(word[i / E::kPerWord], i % E::kPerWord)) == max_abs) lowest = min(lowest, c);
    }
  }
  lowest = __reduce_min_sync(~0u, lowest);
  if (lane == 0 && lowest != INT_MAX) atomicMin(column, lowest);
}

// True if a sweeper has written a value that is not finite.
template <class C>
static __device__ __noinline__ bool HasNonfinite(RowPart part, int w, int lane, int vocab) {
  bool any = false;
  ReadAgain<C>(part, part.grad, w, lane, vocab, [&](int, float g) { any |= !(fabsf(g) < INFINITY); });
  return __any_sync(~0u, any);
}

template <class C>
__device__ __forceinline__ void RunFinishSweeper(uint32_t base, const ShardLaunch& a, const Turns& turns, const SweepPlan<typename C::T>* plans,
                                                 WholeRow* merged, const Group<C>& group) {
  using T = typename C::T;
  constexpr int kElements = kVectorElements<T>;
  const int w = group.warp, lane = group.lane, vocab = a.loss.vocab_size;
  SlotCursor<C> slot(base);
  HalfCursor at;
  for (int turn = 0; turn < turns.count; turn += kBatchRows, at.Next()) {
    const int count = turns.Batch(turn);
    BarrierWait(base + C::READY + at.half * 8, at.phase);
    for (int i = 0; i < count; ++i) {
      const int place = at.half * kBatchRows + i;
      const SweepPlan<T>& plan = plans[place];
      const RowPart part = plan.part;
      const bool live = plan.live;
      if (plan.kind != RowKind::kOrdinary || a.loss.columns > vocab) {
        unsigned char* const grad = a.loss.grad + part.row * a.loss.grad_stride_bytes;
        if (plan.kind == RowKind::kLeftOut)
          ZeroColumns<C>(group, grad, 0, a.loss.columns);
        else if (a.loss.columns > vocab)
          ZeroColumns<C>(group, grad, vocab, a.loss.columns);
        if (plan.kind != RowKind::kOrdinary) {
          for (int first = 0; live && first < part.units(); first += C::UCAP, slot.Next()) {
            BarrierWait(slot.full(), slot.phase);
            ArriveTogether(slot.empty(), lane);
          }
          if (plan.kind == RowKind::kPoisoned) FillColumns<C>(group, grad, vocab, plan.fills_zero ? 0.f : NAN);
          continue;
        }
      }
      StageSweep<T, C::SIGNALS> r(plan.gradient, plan.exponential, plan.scale);
      const bool plain = r.g.plain(), look = C::SIGNALS && plan.look;
      unsigned char* const to = reinterpret_cast<unsigned char*>(part.grad) + lane * 16;
      for (int first = 0; first < part.units(); first += C::UCAP) {
        const uint32_t data = slot.data() + lane * 16;
        BarrierWait(slot.full(), slot.phase);
        if (look) LookInSlot<C>(part, data, first, w, lane, vocab, plan.max_abs, &merged[place].max_abs_column);
        ForShare<C, C::G>(
            part, first, w, !plain,
            [&](auto n, int u) {
              constexpr int N = decltype(n)::value;
              uint4 q[N];
#pragma unroll
              for (int j = 0; j < N; ++j) q[j] = LoadShared16(data + (u - first + j) * kUnitBytes);
#pragma unroll
              for (int j = 0; j < N; ++j) {
                const uint4 o = r.Of(q[j]);
                r.AddSquares(o);
                *reinterpret_cast<uint4*>(to + (u + j) * kUnitBytes) = o;
              }
            },
            [&](int u) {
              const int vector = u * kUnitVectors + lane, column = part.column + vector * kElements;
              const bool valid = vector < part.vectors;
              uint4 q = make_uint4(0u, 0u, 0u, 0u);
              if (valid) q = LoadShared16(data + (u - first) * kUnitBytes);
              __syncwarp();
              uint4 o = r.TakeSome(q, column, vocab, part.target, valid);
              if (r.g.after != 1.f) o = r.After(o);
              if (valid) StoreSome<T>(to + u * kUnitBytes, o, -column, vocab - column);
              __syncwarp();
            });
        ArriveTogether(slot.empty(), lane);
        slot.Next();
      }
      if constexpr (C::SIGNALS) {
        const float restore = plan.restore;
        const float mass = WarpSum(r.Mass());
        float squares = WarpSum((r.Squares(lane) + r.stage_squares.Share(lane)) * restore * restore);
        if (!(squares < INFINITY)) {  // too large to be squared, or not finite: look at what was written
          __syncwarp();
          squares = HasNonfinite<C>(part, w, lane, vocab) ? -1.f : FLT_MAX;
        }
        if (lane == 0) {
          const uint32_t to_found = base + C::FOUND + (place * C::G + w) * 8;
          StoreShared4(to_found, __float_as_uint(mass));
          StoreShared4(to_found + 4, __float_as_uint(squares));
        }
      }
    }
    ArriveTogether(base + C::DONE + at.half * 8, lane);
  }
}

// What the sweepers have found in an ordinary row, in their order.
template <class C>
__device__ __forceinline__ void FoldGradient(uint32_t base, int place, const SweepPlan<typename C::T>& plan, WholeRow* m) {
  float mass = 0.f, squares = 0.f;
  for (int w = 0; w < C::G; ++w) {
    const uint32_t from = base + C::FOUND + (place * C::G + w) * 8;
    const float share = __uint_as_float(LoadShared4(from + 4));
    mass += __uint_as_float(LoadShared4(from));
    m->nonfinite_grad |= share < 0.f;
    squares += share < 0.f ? FLT_MAX : share;
  }
  m->mass = (mass + (m->hit ? m->sums.target : 0.f)) * plan.gradient.inverse_total;
  m->squares = fminf(squares, FLT_MAX);
  m->nonfinite_grad |= plan.gradient.after != 1.f && plan.gradient.after != 0.f;
}

template <class C>
__device__ __forceinline__ void RunFinishKeeper(uint32_t base, const ShardLaunch& a, const Turns& turns, const Sender* senders, WholeRow* merged,
                                                SweepPlan<typename C::T>* plans, CtaTally* tally, int lane) {
  const double denominator = ReadDenominator(a.loss);
  const unsigned largest_before = C::SIGNALS ? static_cast<unsigned>(a.loss.counters->worst_logit.high >> 32) & 0x7fffffffu : 0u;
  HalfCursor merges;
  // Returns how many contributions of this lane's row are not proven.
  const auto merge = [&](int turn) {
    const int place = merges.half * kBatchRows + lane;
    const bool mine = turn + lane < turns.count;
    unsigned bad = 0;
    WholeRow& m = merged[place];
    if (mine) bad = Merge<C>(a, senders, turns.Row(turn + lane), &m);
    bool look = false;
    if constexpr (C::SIGNALS) {
      // Only what may be the launch's largest is looked for. Equal values count: the lowest position decides, and rows come in
      // any order.
      const unsigned bits = mine && m.finite ? __float_as_uint(m.max_abs) : 0u, most = __reduce_max_sync(~0u, bits);
      unsigned so_far = 0;
      if (lane == 0) so_far = max(atomicMax(&a.loss.scratch->best_abs, most), largest_before);
      so_far = max(__shfl_sync(~0u, so_far, 0), most);
      look = mine && m.finite && bits >= so_far;
    }
    if (mine) MakePlan<C>(a, m, denominator, look, &plans[place]);
    ArriveTogether(base + C::READY + merges.half * 8, lane);
    merges.Next();
    return bad;
  };
  HalfCursor at;
  unsigned bad = turns.count > 0 ? merge(0) : 0u;
  for (int turn = 0; turn < turns.count; turn += kBatchRows, at.Next()) {
    const unsigned next_bad = turn + kBatchRows < turns.count ? merge(turn + kBatchRows) : 0u;
    const int place = at.half * kBatchRows + lane;
    const bool mine = turn + lane < turns.count;
    BarrierWait(base + C::DONE + at.half * 8, at.phase);
    if constexpr (C::SIGNALS) {
      if (mine && merged[place].kind == RowKind::kOrdinary) FoldGradient<C>(base, place, plans[place], &merged[place]);
      __syncwarp();
    }
    Book<C>(a, merged[place], mine, bad, tally, lane);
    __syncwarp();
    bad = next_bad;
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::CTAS) ShardRingFinishKernel(const __grid_constant__ ShardLaunch a) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ CtaTally tally;
  __shared__ WholeRow merged[2 * kBatchRows];
  __shared__ __align__(16) unsigned char plans_bytes[2 * kBatchRows * sizeof(SweepPlan<typename C::T>)];
  __shared__ Sender senders[kMostRanks];
  auto* const plans = reinterpret_cast<SweepPlan<typename C::T>*>(plans_bytes);
  const uint32_t base = SharedAddress(shared);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Turns turns = TurnsOf(a.loss.rows, true);
  RowFeed<C> feed(a, base, turns, lane);
  if (warp == 0) {
    if (lane == 0) SetUpShardRing<C>(base);
    __syncwarp();
    feed.Fill(C::NBUF);  // before anything else that takes time
  }
  for (unsigned i = threadIdx.x; i < sizeof(tally) / 8; i += C::THREADS) reinterpret_cast<Word*>(&tally)[i] = 0;
  JudgeSenders(a, senders);
  __syncthreads();
  if (warp == 0) {
    feed.Fill(INT_MAX);
  } else if (warp == 1) {
    RunFinishKeeper<C>(base, a, turns, senders, merged, plans, &tally, lane);
  } else {
    const int w = warp - C::kServiceWarps;
    const Group<C> group{nullptr, 0, w, lane, w * 32 + lane};
    RunFinishSweeper<C>(base, a, turns, plans, merged, group);
  }
  if constexpr (C::SIGNALS) NameWorstSender<C>(a, senders, &tally);
  if (warp == 1) {
    __syncwarp();
    EndLoss(a.loss, &tally, nullptr, gridDim.x, lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARD_RING_FINISH_CUH_
