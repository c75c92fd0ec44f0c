// Parts of a captured call that a replay leaves out when a number on the device says so: nobody on the host knows it by then, and a graph is fixed otherwise.
#ifndef LOSSGAUGE_KERNELS_CUDA_LINEAR_SKIP_H_
#define LOSSGAUGE_KERNELS_CUDA_LINEAR_SKIP_H_

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/device.h"

namespace lossgauge::cuda {

// Conditional nodes in the graph that a stream is being captured into, one for each part. While one of these lives, calls of this thread that capturing
// would forbid are let through (SetUpStream). A part that is begun is ended at the latest here.
class SkippableParts {
 public:
  // possible() tells whether the driver has conditional nodes (and the host memory); if not, nothing has been added to the graph. Then Begin and End must not be
  // called.
  SkippableParts(cudaStream_t captured, int parts) noexcept;
  ~SkippableParts() { (void)End(); }
  SkippableParts(const SkippableParts&) = delete;
  SkippableParts& operator=(const SkippableParts&) = delete;
  bool possible() const { return possible_; }

  // What is enqueued on body() from here to End runs in a replay if then `*count > begin`. Each of the parts must be begun, or the graph cannot be
  // instantiated.
  cudaError_t Begin(const int* count, int begin);
  cudaStream_t body() const { return body_; }
  cudaError_t End();

 private:
  const cudaStream_t captured_;
  const SetUpStream body_;
  std::vector<unsigned long long> handles_;  // of parts not yet begun, the next one last
  bool possible_ = false, open_ = false;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LINEAR_SKIP_H_
