// The stage kernel: forward and gradient of rows so short that several of them fit into a multiprocessor's shared memory at once.
//
// One CTA a multiprocessor. A stage is a place in shared memory for the rows that a group of warps works on at once. Warps:
//
//   keeper x KEEPERS  loss, signals and fingerprints, which are double and 64-bit arithmetic, 32 rows at a time, one a lane, out of a book that the groups
//                     write
//   group x n         WARPS warps each:
//     packed (stage_packed.cuh)  a warp holds ROWS rows in registers, 32 / ROWS lanes a row: instructions that serve a row as a whole serve ROWS of them,
//                                and each exponential is worked out once
//     swept (stage_swept.cuh)    WARPS warps sweep a row twice in shared memory
//   loader            only if groups have several warps
//
// A group of one warp feeds itself (stage_feed.cuh): it takes chunks of rows by ticket, zeroes the masked ones, and copies the others into stages of its own,
// each as soon as it has been read. It shares nothing with the others but the book. Groups of several warps share a ring of stages, stage i goes to group
// i % n, and a loader (stage_loader.cuh) fills it.
//
// Barriers, each an mbarrier with the arrivals it waits for:
//   FULL[stage]      1 + bytes          whoever loads: the stage's rows (or the end) are there
//   EMPTY[stage]     WARPS              the group's warps, to the loader: the stage has been read for the last time
//   BOOKFULL[part]   32 / ROWS * WARPS  the group's warps: 32 rows are written down
//   BOOKEMPTY[part]  1                  keeper: the part's rows are in its registers
// and for WARPS > 1 one named barrier a group, at which partial results are exchanged. They alternate between two places: a warp can write to the first again
// only after all others have arrived with their results of the row between, hence have read it.
// A group takes a row's place in the book when it begins to work on the row, so places are taken in the order in which work begins, or in that of the stages
// if there is a loader. It waits for a part to be empty only until all places before its own are written down, and none of those can wait for this one.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_LAYOUT_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_LAYOUT_CUH_

#include "kernels/cuda/ring_layout.cuh"
#include "kernels/cuda/stage_plan.h"

namespace lossgauge::cuda {

constexpr int kBookParts = 4, kPartRows = 32;
constexpr int kEntryBytes = 48;                // of a row in the book
constexpr int kListRows = 64;                  // unmasked rows that the loader has found and not yet loaded
constexpr int kFeedBytes = 2 * kFeedRows * 12;  // targets and upstream gradients of two chunks
constexpr int kAbsentRow = -1, kEndRow = -2;  // in place of a row: there is none, but more to come; there are no more

template <class T_, int SHAPE_, bool SIGNALS_, bool SMOOTHING_, bool SCALED_>
struct StageConfig {
  using T = T_;
  static constexpr StageShape kShape = kStageShape[SHAPE_];
  static constexpr int ROWS = kShape.rows, WARPS = kShape.warps, KEEPERS = kShape.keepers;
  static constexpr bool SIGNALS = SIGNALS_, SMOOTHING = SMOOTHING_, SCALED = SCALED_;
  static constexpr bool FEEDS = kShape.feeds_itself();
  static constexpr int SERVICE = ServiceWarps(kShape);
  static constexpr int LANES = 32 / ROWS;  // of a row
  static constexpr int BODY = 4;           // vectors that a lane of a swept row keeps in flight
  // Shares of a row's mass and of its gradient's squares that the keeper adds up. Distances are odd numbers of words: 32 rows in 32 banks.
  static constexpr int kMasses = ROWS > 1 ? LANES : WARPS, kShares = kShape.packed ? LANES / 4 : WARPS;
  static constexpr int kMassWords = kMasses | 1, kShareWords = kShares | 1;
  static constexpr int kBookRows = kBookParts * kPartRows;
  // Stages come last: their number is not known here (and see RingConfig on address 0).
  static constexpr uint32_t ZERO = 0, MINUS = ZERO + kZeroPageBytes, BOOK = MINUS + 16, MASSES = BOOK + kBookRows * kEntryBytes,
                            SHARES = MASSES + (SIGNALS ? kBookRows * kMassWords * 4 : 0), PARTIAL = SHARES + (SIGNALS ? kBookRows * kShareWords * 4 : 0),
                            ROW = PARTIAL + (WARPS > 1 ? 16 * 2 * kPartialBytes : 0), LIST = ROW + kMostStages * ROWS * 16,
                            FEED = LIST + (FEEDS ? 0 : kListRows * 16),
                            TALLIES = FEED + (FEEDS ? kStageThreads / 32 * kFeedBytes : 0),
                            REHEARSAL = TALLIES + KEEPERS * sizeof(CtaTally), FULL = REHEARSAL + sizeof(EndRehearsal),
                            EMPTY = FULL + kMostStages * 8, BOOKFULL = EMPTY + kMostStages * 8, BOOKEMPTY = BOOKFULL + kBookParts * 8,
                            BEST = BOOKEMPTY + kBookParts * 8, NEXT = BEST + 4, DONE = NEXT + 4, STAGES = (BEST + 16 + 127) / 128 * 128;
  static_assert(STAGES + kStageBytesForRows <= kStageSharedBytes, "shared memory of a CTA");
  static_assert(WARPS == 1 || ROWS == 1, "the loader fills a stage with one row");
  static_assert(kBookParts % KEEPERS == 0, "a keeper's parts come in its turn");
  static_assert(sizeof(CtaTally) <= kZeroPageBytes, "the zero page serves as an empty tally");
};

struct StageRow {
  int row;  // or kAbsentRow, kEndRow
  int target;
  float scale;  // upstream * grad_scale
};
__device__ __forceinline__ StageRow LoadStageRow(uint32_t smem) {
  const uint4 x = LoadShared16(smem);
  return {static_cast<int>(x.x), static_cast<int>(x.y), __uint_as_float(x.z)};
}

// A row's place in the book, by its number among the CTA's rows.
template <class C>
struct BookPlace {
  const uint32_t base;
  const unsigned row;
  __device__ __forceinline__ uint32_t part() const { return row / kPartRows % kBookParts; }
  __device__ __forceinline__ uint32_t entry() const { return base + C::BOOK + row % C::kBookRows * kEntryBytes; }
  __device__ __forceinline__ uint32_t mass(int i) const { return base + C::MASSES + (row % C::kBookRows * C::kMassWords + i) * 4; }
  __device__ __forceinline__ uint32_t share(int i) const { return base + C::SHARES + (row % C::kBookRows * C::kShareWords + i) * 4; }
  __device__ __forceinline__ uint32_t full() const { return base + C::BOOKFULL + part() * 8; }
  __device__ __forceinline__ uint32_t empty() const { return base + C::BOOKEMPTY + part() * 8; }
  __device__ __forceinline__ uint32_t phase() const { return row / C::kBookRows & 1; }
  __device__ __forceinline__ void WaitUntilEmpty() const { BarrierWait(empty(), phase() ^ 1); }
};
// What all lanes have written or read is handed on by one lane's arrival behind __syncwarp. compute-sanitizer's racecheck does not follow that: built with
// LOSSGAUGE_RACECHECK, each lane arrives by itself.
constexpr unsigned kBookArrivals = kForRacecheck ? 32 : 1;
__device__ __forceinline__ void ArriveAsWarp(uint32_t barrier, int lane) {
  if (lane == 0 || kForRacecheck) BarrierArrive(barrier);
}

// After the last row: the rest of its part says so, and a part for each other keeper. One warp, once no group writes any more.
template <class C>
__device__ __forceinline__ void EndBook(uint32_t base, unsigned rows, int lane) {
  for (int i = 0; i < C::KEEPERS; ++i) {
    const BookPlace<C> place{base, rows / kPartRows * kPartRows + lane};
    place.WaitUntilEmpty();
    const unsigned missing = kPartRows - rows % kPartRows;
    if (lane == 0) {
      for (unsigned row = rows; row < rows + missing; ++row) StoreShared4(BookPlace<C>{base, row}.entry(), static_cast<uint32_t>(kEndRow));
      BarrierArriveMany(place.full(), missing / C::ROWS * C::WARPS * kBookArrivals);
    }
    __syncwarp();
    rows += missing;
  }
}

// What the book says of a row.
struct BookEntry {
  int row, target;
  float z_target, others_max;
  float others, z_sum;  // sum of e^(z - others_max) over the other columns; sum of z over all
  unsigned magnitude;   // bits of the largest finite |z|, if it reaches the largest of the CTA so far
  unsigned column;      // where; INT_MAX = nobody looked
  float target_square;  // of the target's own gradient as emitted
  bool finite, correct, nonfinite;
};
__device__ __forceinline__ void StoreBookEntry(uint32_t to, const BookEntry& e) {
  StoreShared16(to, e.row, e.target, __float_as_uint(e.z_target), __float_as_uint(e.others_max));
  StoreShared16(to + 16, __float_as_uint(e.others), __float_as_uint(e.z_sum), e.magnitude, e.column);
  StoreShared16(to + 32, __float_as_uint(e.target_square), (e.finite ? 1u : 0u) | (e.correct ? 2u : 0u) | (e.nonfinite ? 4u : 0u), 0u, 0u);
}
__device__ __forceinline__ BookEntry LoadBookEntry(uint32_t from) {
  const uint4 x = LoadShared16(from), y = LoadShared16(from + 16), z = LoadShared16(from + 32);
  return {static_cast<int>(x.x), static_cast<int>(x.y), __uint_as_float(x.z), __uint_as_float(x.w), __uint_as_float(y.x), __uint_as_float(y.y),
          y.z, y.w, __uint_as_float(z.x), (z.y & 1u) != 0, (z.y & 2u) != 0, (z.y & 4u) != 0};
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_LAYOUT_CUH_
