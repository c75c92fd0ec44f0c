// The stage kernel's loader: takes batches of rows, zeroes the masked ones, loads the others.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_LOADER_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_LOADER_CUH_

#include "kernels/cuda/ring_service.cuh"
#include "kernels/cuda/stage_layout.cuh"

namespace lossgauge::cuda {

// Rows come in batches of consecutive rows, one a lane: the first two of a CTA are fixed, further ones are taken by ticket, since multiprocessors differ in
// speed. Batches shrink towards the end. Ticket and targets are each asked for a batch before they are needed.
template <class C>
struct StageLoader {
  using E = Element<typename C::T>;
  static constexpr int kElements = kVectorElements<typename C::T>;
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
  unsigned tokens = 0, unmasked = 0, bad = 0;
  Word mask_fingerprint = 0, target_fingerprint = 0;

  __device__ __forceinline__ StageLoader(const CrossEntropyLaunch& a_, const StagePlan& plan_, uint32_t base_, int lane_)
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
  __device__ __forceinline__ void TakeBatch() {
    const unsigned first = next_first, row = first + lane;
    const long long target = next_target;
    const bool mine = static_cast<unsigned>(lane) < next_count && row < rows, in_u = mine && IsUnmasked(a, target);
    const unsigned todo = __ballot_sync(~0u, in_u);
    if (in_u) {
      const unsigned place = listed + __popc(todo & ((1u << lane) - 1));
      StoreShared16(base + C::LIST + place % kListRows * 16, row, static_cast<uint32_t>(target), __float_as_uint(next_scale), 0u);
      if constexpr (C::SIGNALS) {
        target_fingerprint += lg_target_hash(target);
        mask_fingerprint += lg_position_hash(ReadPosition(a, row), target);
      }
    }
    __syncwarp();
    listed += __popc(todo);
    unmasked += __popc(todo);
    const unsigned all = __ballot_sync(~0u, mine);
    tokens += __popc(all);
    if (unsigned masked = all & ~todo) {
      bad += __popc(__ballot_sync(~0u, mine && !in_u && target != a.ignore_index));
      if (mine && !in_u) {
        if (a.losses != nullptr) a.losses[row] = 0.f;
        if (a.log_z != nullptr) a.log_z[row] = 0.f;
      }
      if (a.grad != nullptr) {
        for (; masked != 0; masked &= masked - 1)
          ZeroSpan<C>(base, a.grad + (first + __ffs(static_cast<int>(masked)) - 1) * a.grad_stride_bytes, a.columns, lane);
      }
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

  // Bulk copies move whole 16-byte vectors; where the outermost vectors of a row would reach beyond the caller's tensor, their elements are loaded one by
  // one instead. A swept row's vector 0 begins at a multiple of 128 bytes, a packed row's with the row.
  struct Span {
    unsigned long long row_begin;
    int head, from, to;  // columns that vector 0 begins before the row; vectors to copy
    bool patch_head, patch_tail;
  };
  __device__ __forceinline__ Span MakeSpan(int row) const {
    Span s;
    const unsigned long long row_bytes = static_cast<unsigned long long>(a.columns) * E::kBytes, begin = reinterpret_cast<unsigned long long>(a.logits);
    const bool dense = static_cast<unsigned long long>(a.row_stride_bytes) == row_bytes;
    s.row_begin = begin + row * a.row_stride_bytes;
    const int offset = C::kShape.packed ? 0 : static_cast<int>(s.row_begin & 127);
    s.head = offset / E::kBytes;
    s.from = offset / 16;
    s.to = (s.head + a.vocab_size + kElements - 1) / kElements;
    // Between rows of a dense tensor lie only the tensor's own bytes.
    s.patch_head = !C::kShape.packed && (s.row_begin & ~15ull) < (dense ? begin : s.row_begin);
    s.patch_tail = s.row_begin - offset + 16ull * s.to > (dense ? begin + a.rows * row_bytes : s.row_begin + row_bytes);
    return s;
  }
  __device__ __forceinline__ void Patch(const Span& s, uint32_t data) const {
    const auto patch = [&](int vector, int from_lane) {
      const int i = lane - from_lane;
      const int column = vector * kElements - s.head + i;
      if (i < 0 || i >= kElements || static_cast<unsigned>(column) >= static_cast<unsigned>(a.vocab_size)) return;
      const unsigned char* source = reinterpret_cast<const unsigned char*>(s.row_begin) + static_cast<long long>(column) * E::kBytes;
      const uint32_t smem = data + vector * 16 + i * E::kBytes;
      if constexpr (E::kBytes == 2)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(smem), "h"(*reinterpret_cast<const unsigned short*>(source)) : "memory");
      else StoreShared4(smem, *reinterpret_cast<const uint32_t*>(source));
    };
    if (s.patch_head) patch(s.from, 0);
    if (s.patch_tail && !(s.patch_head && s.to - 1 == s.from)) patch(s.to - 1, 16);
  }

  // The next `count` rows of the list into a stage.
  __device__ __forceinline__ void Fill(const StageCursor<C>& at, int count) {
    StageRow e{kAbsentRow, 0, 1.f};
    if (lane < count) e = LoadStageRow(base + C::LIST + (taken + lane) % kListRows * 16);
    __syncwarp();
    taken += count;
    Span s = MakeSpan(max(e.row, 0));
    if (a.grad != nullptr && a.columns > a.vocab_size) {
      for (int i = 0; i < count; ++i) {
        const int row = __shfl_sync(~0u, e.row, i);
        ZeroSpan<C>(base, a.grad + row * a.grad_stride_bytes + static_cast<long long>(a.vocab_size) * E::kBytes, a.columns - a.vocab_size, lane);
      }
    }
    BarrierWait(at.empty(), at.phase ^ 1);
    __syncwarp();
    for (unsigned patched = __ballot_sync(~0u, lane < count && (s.patch_head || s.patch_tail)); patched != 0; patched &= patched - 1) {
      const int i = __ffs(static_cast<int>(patched)) - 1;
      Patch(MakeSpan(__shfl_sync(~0u, e.row, i)), at.data() + i * plan.pitch);
      __syncwarp();
    }
    if (lane >= C::ROWS) return;
    StoreShared16(at.row(lane), e.row, e.target, __float_as_uint(e.scale), 0u);
    s.from += s.patch_head;
    s.to -= s.patch_tail;
    if (lane < count && s.to > s.from) {
      const unsigned bytes = (s.to - s.from) * 16;
      BarrierArriveExpect(at.full(), bytes);
      const unsigned long long source = s.row_begin - s.head * E::kBytes + 16ull * s.from;
      BulkLoad(at.data() + lane * plan.pitch + s.from * 16, reinterpret_cast<const void*>(source), bytes, at.full());
    } else {
      BarrierArrive(at.full());
    }
  }

  __device__ __forceinline__ void Run(CtaTally* tally) {
    StageCursor<C> at(base, plan, 0);
    for (;; at.Advance(1)) {
      while (listed - taken < C::ROWS && next_first < rows) TakeBatch();
      if (listed == taken) break;
      Fill(at, static_cast<int>(min(listed - taken, static_cast<unsigned>(C::ROWS))));
      __syncwarp();
    }
    const unsigned stages = at.stage;
    for (int i = 0; i < plan.groups; ++i, at.Advance(1)) {
      BarrierWait(at.empty(), at.phase ^ 1);
      if (lane < C::ROWS) {
        StoreShared16(at.row(lane), static_cast<uint32_t>(kEndRow), 0u, 0u, 0u);
        BarrierArrive(at.full());
      }
      __syncwarp();
    }
    Flush(tally);  // before its keeper can learn of the end
    // The rest of the current part, and a part for each other keeper.
    unsigned row = stages * C::ROWS;
    for (int i = 0; i < C::KEEPERS; ++i) {
      const BookPlace<C> place{base, row / kPartRows * kPartRows + lane};
      place.WaitUntilEmpty();
      if (place.row >= row) StoreShared4(place.entry(), static_cast<uint32_t>(kEndRow));
      __syncwarp();
      const unsigned missing = kPartRows - row % kPartRows;
      if (lane == 0) BarrierArriveMany(place.full(), missing / C::ROWS * C::WARPS);
      row += missing;
    }
    BulkWaitAll();
  }

  __device__ __forceinline__ void Flush(CtaTally* tally) {
    if constexpr (C::SIGNALS) {
      mask_fingerprint = WarpSum(mask_fingerprint);
      target_fingerprint = WarpSum(target_fingerprint);
    }
    if (lane == 0) {
      tally->counts[kTokens] = tokens;
      tally->counts[kUnmaskedTokens] = unmasked;
      tally->counts[kBadTargets] = bad;
      tally->counts[kMaskFingerprint] = mask_fingerprint;
      tally->counts[kTargetFingerprint] = target_fingerprint;
    }
    __syncwarp();
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_LOADER_CUH_
