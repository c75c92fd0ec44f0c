// The loader of groups of several warps: takes batches of rows, zeroes the masked ones, loads the others into the ring of stages.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_LOADER_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_LOADER_CUH_

#include "kernels/cuda/stage_span.cuh"

namespace lossgauge::cuda {

// A position in the ring of stages.
template <class C>
struct StageCursor {
  const uint32_t base;
  const int stages, bytes;
  unsigned stage;  // counted from the CTA's first
  int slot;
  uint32_t phase = 0;
  __device__ __forceinline__ StageCursor(uint32_t base_, const StagePlan& plan, int first)
      : base(base_), stages(plan.stages), bytes(plan.stage_bytes), stage(static_cast<unsigned>(first)), slot(first) {}
  __device__ __forceinline__ uint32_t data() const { return base + C::STAGES + slot * bytes; }
  __device__ __forceinline__ uint32_t full() const { return base + C::FULL + slot * 8; }
  __device__ __forceinline__ uint32_t empty() const { return base + C::EMPTY + slot * 8; }
  __device__ __forceinline__ uint32_t row() const { return base + C::ROW + slot * 16; }
  // At most `stages` at once.
  __device__ __forceinline__ void Advance(int by) {
    stage += by;
    slot += by;
    if (slot >= stages) {
      slot -= stages;
      phase ^= 1;
    }
  }
};

// Rows come in batches of consecutive rows, one a lane: the first two of a CTA are fixed, further ones are taken by ticket, since multiprocessors differ in
// speed. Batches shrink towards the end. Ticket and targets are each asked for a batch before they are needed.
template <class C>
struct StageLoader {
  using E = Element<typename C::T>;
  const CrossEntropyLaunch& a;
  const StagePlan& plan;
  const uint32_t base;
  const int lane;
  const unsigned rows;
  // The next batch: targets on their way.
  unsigned next_first, next_count;
  long long next_target;
  float next_scale;
  // The one after it: ticket on its way.
  unsigned ticket, ticket_count, tickets_begin;
  // Rows of the list that are not loaded yet.
  unsigned listed = 0, taken = 0;

  __device__ __forceinline__ StageLoader(const CrossEntropyLaunch& a_, const StagePlan& plan_, uint32_t base_, int, int lane_)
      : a(a_), plan(plan_), base(base_), lane(lane_), rows(static_cast<unsigned>(a_.rows)) {}
  __device__ __forceinline__ unsigned Count(unsigned from) const {
    return min(max((rows - from) / (gridDim.x * 4), 1u), static_cast<unsigned>(plan.batch));
  }
  __device__ __forceinline__ void FetchTargets() {
    const unsigned row = next_first + lane;
    const bool mine = static_cast<unsigned>(lane) < next_count && row < rows;
    next_target = mine ? ReadTarget(a, row) : a.ignore_index;
    next_scale = mine && (a.upstream != nullptr || a.grad_scale != nullptr) ? ReadScale(a, row) : 1.f;
  }
  // Needs no barriers yet.
  __device__ __forceinline__ void FetchFirst() {
    next_count = ticket_count = Count(0);
    next_first = blockIdx.x * next_count;
    ticket = (gridDim.x + blockIdx.x) * ticket_count;
    tickets_begin = 0;  // `ticket` is a row so far
    FetchTargets();
  }

  // Puts the unmasked rows of the next batch onto the list.
  __device__ __forceinline__ void TakeBatch(CtaTally* tally) {
    const unsigned first = next_first, row = first + lane;
    const long long target = next_target;
    const bool mine = static_cast<unsigned>(lane) < next_count && row < rows, in_u = mine && IsUnmasked(a, target);
    const unsigned todo = __ballot_sync(~0u, in_u);
    if (in_u) {
      const unsigned place = listed + __popc(todo & ((1u << lane) - 1));
      StoreShared16(base + C::LIST + place % kListRows * 16, row, static_cast<uint32_t>(target), __float_as_uint(next_scale), 0u);
    }
    __syncwarp();
    listed += __popc(todo);
    if (unsigned masked = __ballot_sync(~0u, mine) & ~todo) {
      const unsigned bad = __ballot_sync(~0u, mine && !in_u && target != a.ignore_index);
      if (lane == 0 && bad != 0) atomicAdd(&tally->counts[kBadTargets], static_cast<Word>(__popc(bad)));
      for (; masked != 0; masked &= masked - 1) WriteMaskedRow<C>(base, a, static_cast<int>(first) + __ffs(static_cast<int>(masked)) - 1, lane);
    }
    next_first = min(__shfl_sync(~0u, ticket, 0), rows) + tickets_begin;
    next_count = ticket_count;
    tickets_begin = 2 * gridDim.x * Count(0);
    FetchTargets();
    if (next_first < rows) {
      ticket_count = Count(next_first);
      if (lane == 0) ticket = atomicAdd(&a.scratch->next_ticket, ticket_count);
    }
  }

  // The next row of the list into a stage.
  __device__ __forceinline__ void Fill(const StageCursor<C>& at) {
    const StageRow e = LoadStageRow(base + C::LIST + taken % kListRows * 16);
    __syncwarp();
    ++taken;
    const StageSpan s = MakeSpan<C>(a, e.row);
    if (a.grad != nullptr && a.columns > a.vocab_size) ZeroPadding<C>(base, a, e.row, lane);
    BarrierWait(at.empty(), at.phase ^ 1);
    __syncwarp();
    if (s.patched()) PatchSpan<C>(a, e.row, at.data(), lane);
    if (lane != 0) return;
    StoreShared16(at.row(), e.row, e.target, __float_as_uint(e.scale), 0u);
    BarrierArriveExpect(at.full(), s.bytes());
    CopySpan<C>(s, at.data(), at.full());
  }

  __device__ __forceinline__ void Run(CtaTally* tally) {
    StageCursor<C> at(base, plan, 0);
    for (;; at.Advance(1)) {
      while (listed == taken && next_first < rows) TakeBatch(tally);
      if (listed == taken) break;
      Fill(at);
      __syncwarp();
    }
    const unsigned stages = at.stage;
    for (int i = 0; i < plan.groups; ++i, at.Advance(1)) {
      BarrierWait(at.empty(), at.phase ^ 1);
      if (lane == 0) {
        StoreShared16(at.row(), static_cast<uint32_t>(kEndRow), 0u, 0u, 0u);
        BarrierArrive(at.full());
      }
      __syncwarp();
    }
    EndBook<C>(base, stages, lane);
    BulkWaitAll();
  }
};

// A group's side of the ring.
template <class C>
struct StageQueue {
  StageCursor<C> at;
  const int groups, lane;
  __device__ __forceinline__ StageQueue(uint32_t base, const StagePlan& plan, int group, int lane_) : at(base, plan, group), groups(plan.groups), lane(lane_) {}
  __device__ __forceinline__ uint32_t data() const { return at.data(); }
  __device__ __forceinline__ uint32_t row(int) const { return at.row(); }
  // False: there are no more rows.
  __device__ __forceinline__ bool Wait() const {
    BarrierWait(at.full(), at.phase);
    return LoadStageRow(at.row()).row != kEndRow;
  }
  __device__ __forceinline__ unsigned TakePlace() const { return at.stage; }
  __device__ __forceinline__ void Release(CtaTally*) {
    __syncwarp();
    if (lane == 0) BarrierArrive(at.empty());
    at.Advance(groups);
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_LOADER_CUH_
