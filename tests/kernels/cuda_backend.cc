// The CUDA backend under test.
#include "tests/kernels/cuda_placement.h"

namespace lossgauge::test {
namespace {

[[maybe_unused]] const bool kSkips = SkipsWithoutDevice::Install();

}  // namespace

Backend& TestedBackend() {
  static CudaPlacement backend;
  return backend;
}

}  // namespace lossgauge::test
