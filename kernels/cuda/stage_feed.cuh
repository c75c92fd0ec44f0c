// A group of one warp feeds itself: takes chunks of rows, zeroes the masked ones, loads the others into its own stages.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_FEED_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_FEED_CUH_

#include "kernels/cuda/stage_span.cuh"

namespace lossgauge::cuda {

// Chunks are consecutive rows, one a lane: the first two of a warp are fixed, further ones are taken by ticket, since multiprocessors differ in speed. They
// shrink towards the end. Ticket and targets are each asked for a chunk before they are needed.
template <class C>
struct StageFeed {
  using E = Element<typename C::T>;
  const CrossEntropyLaunch& a;
  const StagePlan& plan;
  const uint32_t base;
  const int group, lane;
  // The next chunk: its targets are on their way to shared memory.
  unsigned next_first, next_count;
  // The one after it: its ticket is on its way.
  unsigned ticket, ticket_count, tickets_begin = 0;
  unsigned first = 0, todo = 0;  // this chunk, and a bit for each row that is still to be loaded
  unsigned chunks = 0;
  int slot = 0, loaded = 0;  // stages that are loaded or on their way
  uint32_t phase = 0;

  __device__ __forceinline__ StageFeed(const CrossEntropyLaunch& a_, const StagePlan& plan_, uint32_t base_, int group_, int lane_)
      : a(a_), plan(plan_), base(base_), group(group_), lane(lane_) {}
  // Needs no barriers yet.
  __device__ __forceinline__ void FetchFirst() {
    // Neighbouring chunks to different multiprocessors: few rows, too, are work for all.
    next_count = ticket_count = Count(0);
    next_first = min((group * gridDim.x + blockIdx.x) * next_count, Rows());
    ticket = next_first + feeds() * next_count;  // a row so far
    FetchTargets();
  }
  __device__ __forceinline__ unsigned Rows() const { return static_cast<unsigned>(a.rows); }
  __device__ __forceinline__ unsigned feeds() const { return gridDim.x * static_cast<unsigned>(plan.groups); }
  __device__ __forceinline__ unsigned Count(unsigned from) const {
    const unsigned count = min((Rows() - from) / (feeds() * 4), static_cast<unsigned>(plan.batch) - C::ROWS);
    return (count / C::ROWS + 1) * C::ROWS;
  }
  __device__ __forceinline__ uint32_t home(unsigned chunk) const { return base + C::FEED + group * kFeedBytes + (chunk & 1) * (kFeedBytes / 2) + lane * 4; }
  __device__ __forceinline__ int stage() const { return group * plan.stages + slot; }
  __device__ __forceinline__ uint32_t full() const { return base + C::FULL + stage() * 8; }
  __device__ __forceinline__ uint32_t data() const { return base + C::STAGES + stage() * plan.stage_bytes; }
  __device__ __forceinline__ uint32_t row(int i) const { return base + C::ROW + (stage() * C::ROWS + i) * 16; }

  __device__ __forceinline__ void FetchTargets() const {
    const unsigned r = next_first + lane;
    if (static_cast<unsigned>(lane) >= next_count || r >= Rows()) return;
    const uint32_t to = home(chunks);
    const int* const word = static_cast<const int*>(a.targets) + r * a.target_stride * (a.targets_are_int64 ? 2 : 1);
    AsyncCopy4(to, word);
    if (a.targets_are_int64) AsyncCopy4(to + kFeedRows * 4, word + 1);
    if (a.upstream != nullptr) AsyncCopy4(to + kFeedRows * 8, a.upstream + r * a.upstream_stride);
  }
  __device__ __forceinline__ void TakeChunk(CtaTally* tally) {
    AsyncCopyWait();
    first = next_first;
    const bool mine = static_cast<unsigned>(lane) < next_count && first + lane < Rows();
    long long target = a.ignore_index;
    if (mine) {
      const uint32_t from = home(chunks), low = LoadShared4(from);
      target = a.targets_are_int64 ? static_cast<long long>(static_cast<Word>(LoadShared4(from + kFeedRows * 4)) << 32 | low) : static_cast<int>(low);
    }
    const bool in_u = mine && IsUnmasked(a, target);
    todo = __ballot_sync(~0u, in_u);
    if (unsigned masked = __ballot_sync(~0u, mine) & ~todo) {
      const unsigned bad = __ballot_sync(~0u, mine && !in_u && target != a.ignore_index);
      if (lane == 0 && bad != 0) atomicAdd(&tally->counts[kBadTargets], static_cast<Word>(__popc(bad)));
      for (; masked != 0; masked &= masked - 1) WriteMaskedRow<C>(base, a, static_cast<int>(first) + __ffs(static_cast<int>(masked)) - 1, lane);
      __syncwarp();
    }
    next_first = min(__shfl_sync(~0u, ticket, 0) + tickets_begin, Rows());
    if (chunks++ == 0) tickets_begin = 2 * feeds() * ticket_count;
    if (next_first >= Rows()) return;
    next_count = ticket_count;
    FetchTargets();
    ticket_count = Count(next_first);
    if (lane == 0) ticket = atomicAdd(&a.scratch->next_ticket, ticket_count);
  }

  // The next rows into stage `slot`. What the last ones left there has been read.
  __device__ __forceinline__ void Refill(CtaTally* tally) {
    while (todo == 0 && next_first < Rows()) TakeChunk(tally);
    if (todo == 0) return;
    const unsigned before = todo & ((1u << lane) - 1), rank = __popc(before);
    const bool picked = (todo >> lane & 1) != 0 && rank < C::ROWS;
    const unsigned picks = __ballot_sync(~0u, picked);
    const int r = static_cast<int>(first) + lane;
    if (a.grad != nullptr && a.columns > a.vocab_size) {
      for (unsigned left = picks; left != 0; left &= left - 1) ZeroPadding<C>(base, a, static_cast<int>(first) + __ffs(static_cast<int>(left)) - 1, lane);
    }
    todo &= ~picks;
    ++loaded;
    const int count = __popc(picks);
    if (picked) {
      const uint32_t from = home(chunks - 1);
      float scale = a.upstream != nullptr ? __uint_as_float(LoadShared4(from + kFeedRows * 8)) : 1.f;
      if (a.grad_scale != nullptr) scale *= *a.grad_scale;
      StoreShared16(row(rank), r, LoadShared4(from), __float_as_uint(scale), 0u);
    }
    if (C::ROWS > 1 && lane >= count && lane < C::ROWS) StoreShared16(row(lane), static_cast<uint32_t>(kAbsentRow), 0u, __float_as_uint(1.f), 0u);
    if (C::kShape.packed && plan.whole) {
      const unsigned run = picks >> (__ffs(static_cast<int>(picks)) - 1);
      const bool joined = C::ROWS == 1 || (plan.joined && (run & (run + 1)) == 0);
      if (lane == 0) BarrierArriveExpect(full(), count * plan.pitch);
      __syncwarp();
      if (picked && (rank == 0 || !joined))
        BulkLoad(data() + rank * plan.pitch, a.logits + r * a.row_stride_bytes, joined ? count * plan.pitch : plan.pitch, full());
    } else {
      const StageSpan s = MakeSpan<C>(a, picked ? r : 0);
      for (unsigned patched = __ballot_sync(~0u, picked && s.patched()); patched != 0; patched &= patched - 1) {
        const int i = __ffs(static_cast<int>(patched)) - 1;
        PatchSpan<C>(a, static_cast<int>(first) + i, data() + __shfl_sync(~0u, rank, i) * plan.pitch, lane);
      }
      const unsigned bytes = __reduce_add_sync(~0u, picked ? s.bytes() : 0u);
      if (lane == 0) BarrierArriveExpect(full(), bytes);
      __syncwarp();
      if (picked) CopySpan<C>(s, data() + rank * plan.pitch, full());
    }
    __syncwarp();
  }

  // Once the barriers are there.
  __device__ __forceinline__ void Start(CtaTally* tally) {
    for (slot = 0; slot < plan.stages; ++slot) Refill(tally);
    slot = 0;
  }
  // False: there are no more rows.
  __device__ __forceinline__ bool Wait() {
    if (loaded == 0) return false;
    BarrierWait(full(), phase);
    return true;
  }
  // Of lane 0: place in the book of the stage's first row. Not an addition: the compiler takes a dozen instructions to make one out of those of several lanes.
  __device__ __forceinline__ unsigned TakePlace() const {
    unsigned stages_before = 0;
    if (lane == 0) asm volatile("atom.shared.inc.u32 %0, [%1], 0xffffffff;" : "=r"(stages_before) : "r"(base + C::NEXT) : "memory");
    return stages_before * C::ROWS;
  }
  // The stage has been read for the last time.
  __device__ __forceinline__ void Release(CtaTally* tally) {
    __syncwarp();
    --loaded;
    Refill(tally);
    if (++slot == plan.stages) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ void Finish() const {
    unsigned done = 0;
    __syncwarp();
    if (lane == 0) {
      __threadfence_block();
      asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(done) : "r"(base + C::DONE) : "memory");
      __threadfence_block();
    }
    if (__shfl_sync(~0u, done, 0) == static_cast<unsigned>(plan.groups) - 1) EndBook<C>(base, LoadShared4(base + C::NEXT) * C::ROWS, lane);
    BulkWaitAll();
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_FEED_CUH_
