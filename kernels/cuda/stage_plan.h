// What the host chooses for a launch of the stage kernel. See stage_layout.cuh for the whole.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_PLAN_H_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_PLAN_H_

namespace lossgauge::cuda {

constexpr int kStageThreads = 512;  // at most: leaves 128 registers a thread
constexpr int kMostStages = 64;  // of a CTA
constexpr int kStageSharedBytes = 227 * 1024;
constexpr int kStageBytesForRows = 192 * 1024;
constexpr int kPackedUnits = 8;  // vectors of a row that a lane holds

struct StagePlan {
  int groups;
  int stages;       // of each group if it has its own, else of all together
  int stage_bytes;  // multiple of 128
  int pitch;        // from row to row of a stage; multiple of 16
  int vectors;      // of a row (packed)
  bool whole;       // columns fill them
  bool joined;      // rows follow one another without a gap
  int batch;        // most rows of a ticket
};

// How a row's shape is worked on: rows of a warp at once for packed ones, else warps of a row; warps that keep the book.
struct StageShape {
  bool packed;
  int rows, warps, keepers;
  // One warp fills its own stages: a warp that loads for all others needs 1000 cycles a stage, which is too long for rows of less than 16 KB.
  constexpr bool feeds_itself() const { return warps == 1; }
};
constexpr int kStageShapes = 6;
constexpr StageShape kStageShape[kStageShapes] = {{true, 4, 1, 4}, {true, 2, 1, 2}, {true, 1, 1, 2}, {false, 1, 1, 2}, {false, 1, 2, 1}, {false, 1, 4, 1}};
constexpr int kFeedRows = 16;  // most rows of a ticket of a group that feeds itself
// Warps beside the groups', and most groups.
constexpr int ServiceWarps(const StageShape& s) { return s.keepers + (s.feeds_itself() ? 0 : 1); }
// No more than a part of the book (32 rows) has stages: while its keeper is behind, a group waits at each of them, and one that came round a second time would
// take the parity of the lap before last for its own.
constexpr int MostGroups(const StageShape& s) {
  const int fit = (kStageThreads / 32 - ServiceWarps(s)) / s.warps, stages = 32 / s.rows;
  return fit < stages ? fit : stages;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_PLAN_H_
