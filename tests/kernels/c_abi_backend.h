// A backend reached through the C ABI alone. Tensors are laid out on the host between guard pages; where the kernels read them is the derived class's.
#ifndef LOSSGAUGE_TESTS_KERNELS_C_ABI_BACKEND_H_
#define LOSSGAUGE_TESTS_KERNELS_C_ABI_BACKEND_H_

#include <memory>

#include "tests/kernels/backend.h"
#include "tests/kernels/guarded_buffer.h"

namespace lossgauge::test {

// What of a problem is numbers in a loss call of any kind: options, position and threads.
void SetOptions(const Problem& problem, lg_cross_entropy_args* args);

class CAbiBackend : public Backend {
 public:
  std::unique_ptr<Telemetry> OpenTelemetry(const TelemetryOptions& options) override;
  Outcome Run(const Problem& problem) override;
  LinearOutcome RunLinear(const LinearProblem& problem) override;

 protected:
  // The call itself, on tensors that are laid out.
  virtual int Call(const Problem& problem, const lg_cross_entropy_args& args);
  // Where the kernels shall find `buffer`, which holds its content already. At the same distance from a 4096-byte boundary as on the host. The same
  // buffer twice gives the same place.
  virtual unsigned char* Place(GuardedBuffer& buffer) { return buffer.data(); }
  // After the call: what the kernels wrote is in the host's buffers, and places are forgotten.
  virtual void Collect() {}
  // Ends once everything enqueued has run.
  virtual void Finish() {}
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_C_ABI_BACKEND_H_
