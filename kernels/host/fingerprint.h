/* The fixed 64-bit hashes behind mask_fingerprint and target_fingerprint. Every backend sums the same hashes mod 2^64, so the
 * fingerprints compare with == between ranks, backends and releases: changing a constant here changes the record format.
 *
 *   target_fingerprint = sum over unmasked, in-range positions of lg_target_hash(target)
 *   mask_fingerprint   = sum over the same positions of lg_position_hash(position, target)
 *
 * Summing (and not xor-ing) keeps a token that occurs twice visible. Compiles as C11, C++17 and CUDA C++.
 */
#ifndef LOSSGAUGE_KERNELS_HOST_FINGERPRINT_H_
#define LOSSGAUGE_KERNELS_HOST_FINGERPRINT_H_

#include "proto/lossgauge/ring/ring_abi.h"

/* Odd constants keep target 0 at position 0 away from the mixer's fixed point 0. */
LG_RING_FN uint64_t lg_target_hash(int64_t target) {
  return lg_ring_mix((uint64_t)target * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0xd1b54a32d192ed03));
}

/* `position` is the position in the step. */
LG_RING_FN uint64_t lg_position_hash(int64_t position, int64_t target) {
  return lg_ring_mix(lg_target_hash(target) + ((uint64_t)position + 1) * UINT64_C(0xd6e8feb86659fd93));
}

#endif /* LOSSGAUGE_KERNELS_HOST_FINGERPRINT_H_ */
