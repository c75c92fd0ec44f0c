// Which map a launch's options ask for.
#ifndef LOSSGAUGE_KERNELS_CUDA_LOGIT_MAP_H_
#define LOSSGAUGE_KERNELS_CUDA_LOGIT_MAP_H_

#include <cmath>

#include "kernels/cuda/device_counters.h"

namespace lossgauge::cuda {

// Never kTable, which is a faster kCap of one kernel's.
inline LogitMap MapOf(const CrossEntropyLaunch& a) {
  if (a.logit_softcap == 0.) return a.logit_scale == 1. ? LogitMap::kNone : LogitMap::kScale;
  const double scale = std::fabs(a.logit_scale);
  // kCap multiplies with the scale in fp32, and clamps logits there to some hundred times cap / scale.
  return a.logit_softcap > kHighestCap || scale < 1e-25 || scale > 1e25 || a.logit_softcap < 1e-30 * scale ? LogitMap::kHighCap : LogitMap::kCap;
}

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LOGIT_MAP_H_
