// The ring kernel's frame: set-up, roles, end. See ring_layout.cuh for the whole.
#ifndef LOSSGAUGE_KERNELS_CUDA_RING_KERNEL_CUH_
#define LOSSGAUGE_KERNELS_CUDA_RING_KERNEL_CUH_

#include "kernels/cuda/ring_gradient.cuh"
#include "kernels/cuda/ring_merge.cuh"
#include "kernels/cuda/ring_reduce.cuh"
#include "kernels/cuda/ring_service.cuh"

namespace lossgauge::cuda {

template <class C>
__device__ __forceinline__ void SetUp(uint32_t base, const CrossEntropyLaunch& a, CtaTally* tally) {
  if (threadIdx.x == 0) {
    BarrierInit(base + C::STARTED, 1);
    StoreShared4(base + C::NOZEROS, 0u);
    for (int i = 0; i < C::NBUF; ++i) {
      BarrierInit(base + C::FULL + i * 8, kWarpArrivals);
      BarrierInit(base + C::EMPTY + i * 8, C::G);
    }
    for (int i = 0; i < C::NS; ++i) {
      BarrierInit(base + C::QFULL + i * 8, 1);
      BarrierInit(base + C::PFULL + i * 8, 1);
      BarrierInit(base + C::SFULL + i * 8, C::CL * C::R);
      BarrierInit(base + C::READY + i * 8, 1);
      BarrierInit(base + C::SEMPTY + i * 8, C::CL * (C::G + kWarpArrivals));
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(base + C::BOOKFULL + i * 8, kBookRows);
      BarrierInit(base + C::BOOKEMPTY + i * 8, 1);
      BarrierInit(base + C::MASSFULL + i * 8, kBookRows * C::CL * C::G);
    }
    BarrierInitFence();
  }
  for (unsigned i = threadIdx.x; i < 2 * sizeof(CtaTally) / 8; i += C::THREADS) reinterpret_cast<Word*>(tally)[i] = 0;  // both
  for (unsigned i = threadIdx.x; i < kZeroPageBytes / 16; i += C::THREADS) StoreShared16(base + C::ZERO + i * 16, 0u, 0u, 0u, 0u);
  AsyncProxyFence();  // the zero page is read by bulk stores
  __syncthreads();
  if constexpr (C::CL > 1) ClusterSync();
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1) RingKernel(const __grid_constant__ CrossEntropyLaunch a) {
  extern __shared__ __align__(128) unsigned char shared[];
  uint32_t base;
  asm volatile("mov.b32 %0, %1;" : "=r"(base) : "r"(SharedAddress(shared)));  // or the compiler fetches it anew for each access
  CtaTally* const tally = reinterpret_cast<CtaTally*>(shared + C::TALLY);
  CtaTally* const grad_tally = reinterpret_cast<CtaTally*>(shared + C::GRAD_TALLY);  // of the rows' gradients, which are through after the losses
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int rank = C::CL == 1 ? 0 : static_cast<int>(ClusterRank());
  const int cluster = blockIdx.x / C::CL, clusters = gridDim.x / C::CL;
  Scheduler<C> scheduler{a, base, lane, cluster, clusters};
  if (warp == 1 && rank == 0) scheduler.FetchFirst();
  SetUp<C>(base, a, tally);

  if (warp == 0) {
    RunProducer<C>(base, a, rank, lane);
  } else if (warp == 1) {
    if (rank == 0) {
      scheduler.Run(tally);
      WaitForLoss();
      EndLoss(a, tally, nullptr, static_cast<unsigned>(clusters), lane);
    } else {
      ZeroMaskedRows<C>(base, a, lane);
    }
  } else if (warp == 2) {
    RunCombiner<C>(base, a, tally, rank, lane);
  } else if (warp == 3) {
    if constexpr (C::SIGNALS) {
      // What earlier launches of the step have seen spares the reducers a look.
      if (lane == 0) {
        if constexpr (kForRacecheck) atomicMax(&tally->best_abs, LargestLogitBefore<C>(a));
        else *static_cast<volatile unsigned*>(&tally->best_abs) = LargestLogitBefore<C>(a);
      }
    }
    // Once the first row is through: until then, code on its way has to come from memory, too.
    BarrierWait(base + C::STARTED, 0);
    __syncwarp();
    EndLoss(a, reinterpret_cast<const CtaTally*>(shared + C::ZERO), reinterpret_cast<EndRehearsal*>(shared + C::REHEARSAL), 0, lane);
    if (rank == 0) RunBookkeeper<C>(base, a, tally, grad_tally, lane);
  } else if (warp < C::kServiceWarps + C::R) {
    RunReducer<C>(base, a, tally, rank, warp - C::kServiceWarps, lane);
  } else {
    RunGradient<C>(base, a, grad_tally, rank, warp - C::kServiceWarps - C::R, lane);
  }
  if (C::CL > 1 && warp >= C::kServiceWarps) ZeroTogether<C>(base, a, warp - C::kServiceWarps, lane);
  __syncthreads();
  if (C::CL > 1 && threadIdx.x == 32 && a.grad != nullptr && atomicAdd(&a.scratch->finished_zeroing, 1u) == gridDim.x - 1) {
    a.scratch->next_zero = a.scratch->finished_zeroing = 0;  // nobody takes a block any more
  }
  // Masses and squares of the last rows.
  if (C::SIGNALS && warp == 0) AddTally(grad_tally, a.counters, lane);
  // Nobody leaves while a peer may still write here.
  if constexpr (C::CL > 1) ClusterSync();
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_RING_KERNEL_CUH_
