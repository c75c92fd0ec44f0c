// PTX that CUDA C++ has no words for: mbarriers, bulk copies, distributed shared memory, tensor-core sums. sm_90 and newer, except the last part.
//
// Shared-memory addresses are 32-bit (`uint32_t smem`); a barrier is an 8-byte mbarrier at such an address.
#ifndef LOSSGAUGE_KERNELS_CUDA_PTX_CUH_
#define LOSSGAUGE_KERNELS_CUDA_PTX_CUH_

#include <cstdint>

namespace lossgauge::cuda {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ uint4 LoadShared16(uint32_t smem) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(smem));
  return v;
}
__device__ __forceinline__ void StoreShared16(uint32_t smem, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(smem), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ uint32_t LoadShared4(uint32_t smem) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(smem));
  return v;
}
__device__ __forceinline__ void StoreShared4(uint32_t smem, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(x) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// The same shared-memory offset in another CTA of the cluster.
__device__ __forceinline__ uint32_t MapToCta(uint32_t smem, uint32_t cta) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(smem), "r"(cta));
  return r;
}
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarrierInitFence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Default semantics (acquire at CTA scope) also for barriers that other CTAs arrive on: cluster scope would compile to an L1 invalidation for each
// poll and, on the arriving side, to a fence that waits for every global store of the warp (measured 20 % slower). The data guarded by such a
// barrier lies in shared memory and either arrives with the barrier's own byte count or is read after all of the arrivals.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 20000;\n"
      "@!p bra WAIT;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ bool BarrierTest(uint32_t barrier, uint32_t parity) {
  uint32_t complete;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}" : "=r"(complete) : "r"(barrier), "r"(parity) : "memory");
  return complete != 0;
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void BarrierArriveMany(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void BarrierArriveRemote(uint32_t barrier, uint32_t cta) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(MapToCta(barrier, cta)) : "memory");
}
__device__ __forceinline__ void BarrierArriveExpectRemote(uint32_t barrier, uint32_t cta, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(MapToCta(barrier, cta)), "r"(bytes) : "memory");
}
// 16 bytes into another CTA's shared memory, counted on that CTA's barrier. Illegal in a launch without clusters.
__device__ __forceinline__ void StoreRemote16(uint32_t smem, uint32_t barrier, uint32_t cta, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(MapToCta(smem, cta)),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(MapToCta(barrier, cta)) : "memory");
}
// One arrival with 4 bytes. Relaxed: a release to another CTA would wait for all global stores of the warp, a microsecond behind a gradient; the bytes are
// counted by the barrier itself.
__device__ __forceinline__ void ArriveWithRemote4(uint32_t smem, uint32_t barrier, uint32_t cta, uint32_t x) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], 4;" ::"r"(MapToCta(barrier, cta)) : "memory");
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(MapToCta(smem, cta)), "r"(x),
               "r"(MapToCta(barrier, cta)) : "memory");
}
// For compute-sanitizer's racecheck, which does not follow barriers that bytes of another CTA complete: the same exchange by plain stores, a release
// and an acquire at cluster scope. Slower, see BarrierWait.
#ifdef LOSSGAUGE_RACECHECK
constexpr bool kForRacecheck = true;
#else
constexpr bool kForRacecheck = false;
#endif
__device__ __forceinline__ void StoreRemotePlain16(uint32_t smem, uint32_t cta, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(MapToCta(smem, cta)), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ __forceinline__ void BarrierReleaseRemote(uint32_t barrier, uint32_t cta) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(MapToCta(barrier, cta)) : "memory");
}
__device__ __forceinline__ void BarrierWaitCluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1, 20000;\n"
      "@!p bra WAIT;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void StoreRemote4(uint32_t smem, uint32_t cta, uint32_t x) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(MapToCta(smem, cta)), "r"(x) : "memory");
}

// Global and shared address and byte count are multiples of 16.
__device__ __forceinline__ void BulkLoad(uint32_t smem, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem), "l"(global),
               "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void BulkStore(void* global, uint32_t smem, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(smem), "r"(bytes) : "memory");
}
__device__ __forceinline__ void BulkCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void BulkWaitAll() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void AsyncProxyFence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif  // sm_90

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Exp2WithSubnormals(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
__device__ __forceinline__ unsigned long long WarpSum(unsigned long long x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}
// NaN counts as less than everything, as in fmaxf.
__device__ __forceinline__ float WarpMax(float x) {
  x = x == x ? x : -INFINITY;
  int i = __float_as_int(x);
  i ^= (i >> 31) & 0x7fffffff;  // order-preserving image
  i = __reduce_max_sync(~0u, i);
  i ^= (i >> 31) & 0x7fffffff;
  return __int_as_float(i);
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_PTX_CUH_
