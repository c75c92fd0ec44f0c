// What the host chooses for a launch of the stage kernel. See stage_layout.cuh for the whole.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_PLAN_H_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_PLAN_H_

namespace lossgauge::cuda {

constexpr int kStageThreads = 512;  // at most: leaves 128 registers a thread
constexpr int kMostStages = 64;
constexpr int kStageSharedBytes = 227 * 1024;
constexpr int kStageBytesForRows = kStageSharedBytes - 27 * 1024;
constexpr int kPackedUnits = 8;  // vectors of a row that a lane holds

struct StagePlan {
  int groups;
  int stages;       // at least as many as groups
  int stage_bytes;  // multiple of 128
  int pitch;        // from row to row of a stage; multiple of 16
  int vectors;      // of a row (packed)
  bool whole;       // columns fill them
  int batch;        // most rows of a ticket, up to 32
};

// How a row's shape is worked on: rows of a warp at once for packed ones, else warps of a row; warps that keep the book.
struct StageShape {
  bool packed;
  int rows, warps, keepers;
};
constexpr int kStageShapes = 6;
constexpr StageShape kStageShape[kStageShapes] = {{true, 4, 1, 4}, {true, 2, 1, 4}, {true, 1, 1, 2}, {false, 1, 1, 2}, {false, 1, 2, 1}, {false, 1, 4, 1}};
// Most groups: what is left of the CTA's warps beside loader and keepers.
constexpr int MostGroups(const StageShape& s) { return (kStageThreads / 32 - 1 - s.keepers) / s.warps; }

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_PLAN_H_
