// Labels of packed documents, made where the tokens are.
#ifndef LOSSGAUGE_KERNELS_CUDA_PACK_LABELS_H_
#define LOSSGAUGE_KERNELS_CUDA_PACK_LABELS_H_

#include <cuda_runtime.h>

#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge::cuda {

// Of arguments whose memory is the current device's. Lengths are believed no further than that every read and write stays within tokens and labels.
cudaError_t LaunchPackLabels(const lg_pack_labels_args& args);

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_PACK_LABELS_H_
