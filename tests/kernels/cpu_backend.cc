// The CPU backend under test: kernels work on the guarded host buffers themselves.
#include "tests/kernels/c_abi_backend.h"

namespace lossgauge::test {
namespace {

class CpuBackend final : public CAbiBackend {
 public:
  std::string Name() const override { return std::string("cpu/") + lg_cpu_variant(); }
};

}  // namespace

Backend& TestedBackend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace lossgauge::test
