// The stage kernel's frame: set-up, roles, end. See stage_layout.cuh for the whole.
#ifndef LOSSGAUGE_KERNELS_CUDA_STAGE_KERNEL_CUH_
#define LOSSGAUGE_KERNELS_CUDA_STAGE_KERNEL_CUH_

#include <type_traits>

#include "kernels/cuda/stage_feed.cuh"
#include "kernels/cuda/stage_keeper.cuh"
#include "kernels/cuda/stage_loader.cuh"
#include "kernels/cuda/stage_packed.cuh"
#include "kernels/cuda/stage_swept.cuh"

namespace lossgauge::cuda {

template <class C>
__device__ __forceinline__ void SetUpStages(uint32_t base, const StagePlan& plan, CtaTally* tallies) {
  constexpr uint32_t inf = Element<typename C::T>::kMinusInfinity;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread < (C::FEEDS ? plan.groups * plan.stages : plan.stages)) {
    BarrierInit(base + C::FULL + thread * 8, 1);
    BarrierInit(base + C::EMPTY + thread * 8, C::WARPS);
  }
  if (thread >= 64 && thread < 64 + kBookParts) {
    BarrierInit(base + C::BOOKFULL + (thread - 64) * 8, kPartRows / C::ROWS * C::WARPS * kBookArrivals);
    BarrierInit(base + C::BOOKEMPTY + (thread - 64) * 8, kBookArrivals);
  }
  BarrierInitFence();
  if (thread == 68) {
    StoreShared16(base + C::MINUS, inf, inf, inf, inf);
    StoreShared16(base + C::BEST, 0u, 0u, 0u, 0u);  // and NEXT, DONE
  }
  for (int i = thread; i < kZeroPageBytes / 16; i += threads) StoreShared16(base + C::ZERO + i * 16, 0u, 0u, 0u, 0u);
  for (int i = thread; i < static_cast<int>(C::KEEPERS * sizeof(CtaTally) / 8); i += threads) reinterpret_cast<Word*>(tallies)[i] = 0;
  AsyncProxyFence();  // the zero page is read by bulk stores, the barriers by bulk loads
  __syncthreads();
}

template <class C>
__global__ void __launch_bounds__(kStageThreads, 1) StageKernel(const __grid_constant__ CrossEntropyLaunch a, const __grid_constant__ StagePlan plan) {
  extern __shared__ __align__(128) unsigned char shared[];
  uint32_t base;
  asm volatile("mov.b32 %0, %1;" : "=r"(base) : "r"(SharedAddress(shared)));  // or the compiler fetches it anew for each access
  CtaTally* const tallies = reinterpret_cast<CtaTally*>(shared + C::TALLIES);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int worker = warp - C::SERVICE;
  // The first targets are asked for before anything else.
  using Rows = std::conditional_t<C::FEEDS, StageFeed<C>, StageLoader<C>>;
  Rows rows(a, plan, base, worker, lane);
  if (C::FEEDS ? worker >= 0 : warp == C::KEEPERS) rows.FetchFirst();
  SetUpStages<C>(base, plan, tallies);
  if (warp < C::KEEPERS) {
    if (warp == 0) {
      // What earlier launches of the step have seen spares the groups a look.
      if (C::SIGNALS && lane == 0) RaiseLargest(base + C::BEST, LargestLogitBefore<C>(a));
      if (lane == 0 && blockIdx.x == 0) tallies->counts[kTokens] = static_cast<Word>(a.rows);
      __nanosleep(2000);  // the groups' own code has to come from memory, too
      __syncwarp();
      EndLoss(a, reinterpret_cast<const CtaTally*>(shared + C::ZERO), reinterpret_cast<EndRehearsal*>(shared + C::REHEARSAL), 0, lane);
    }
    RunKeeper<C>(base, a, tallies + warp, warp, lane);
    EndLoss(a, tallies + warp, nullptr, gridDim.x * C::KEEPERS, lane);
  } else if constexpr (C::FEEDS) {
    rows.Start(tallies);
    if constexpr (!C::kShape.packed) RunSwept<C>(base, a, rows, tallies, 0, 0, lane);
    else if (plan.whole && plan.vectors == C::LANES * kPackedUnits) RunPacked<C, true>(base, a, plan, rows, tallies, lane);
    else RunPacked<C, false>(base, a, plan, rows, tallies, lane);
    rows.Finish();
  } else if (worker < 0) {
    rows.Run(tallies);
  } else {
    StageQueue<C> queue(base, plan, worker / C::WARPS, lane);
    RunSwept<C>(base, a, queue, tallies, worker / C::WARPS, worker % C::WARPS, lane);
  }
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_STAGE_KERNEL_CUH_
