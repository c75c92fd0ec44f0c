// A backend for devices that computes nothing: each call that reaches it comes out as Outcome() says. Tests say what is a device's memory.
#ifndef LOSSGAUGE_TESTS_KERNELS_HOST_IDLE_BACKEND_H_
#define LOSSGAUGE_TESTS_KERNELS_HOST_IDLE_BACKEND_H_

#include <cstdint>

#include "kernels/host/device_backend.h"

namespace lossgauge {

class IdleBackend : public DeviceBackend {
 public:
  int CrossEntropy(const lg_cross_entropy_args&, LossPurpose, const char*) override { return Outcome(); }
  int ScaleGradient(const lg_scale_gradient_args&) override { return Outcome(); }
  int LinearCrossEntropy(const lg_linear_cross_entropy_args&, LossPurpose, const char*) override { return Outcome(); }
  int PlanLinear(const lg_linear_cross_entropy_args&, const char*, lg_linear_plan*) override { return Outcome(); }
  int PrepareLinear(const lg_linear_cross_entropy_args&, const char*) override { return Outcome(); }
  int PackLabels(const lg_pack_labels_args&) override { return Outcome(); }
  int VocabParallelBegin(const lg_vocab_parallel_args&, void*, const char*) override { return Outcome(); }
  int VocabParallelFinish(const lg_vocab_parallel_args&, const void*, const char*) override { return Outcome(); }
  int VocabParallelCrossEntropy(const lg_vocab_parallel_args&, void*, void*, const char*) override { return Outcome(); }
  int VocabParallelLinear(const ShardedLinear&, const char*) override { return Outcome(); }
  int PlanVocabParallelLinear(const ShardedLinear&, const char*, lg_linear_plan*) override { return Outcome(); }
  int PrepareVocabParallelLinear(const ShardedLinear&, const char*) override { return Outcome(); }
  int MakeUniqueId(void*, const char*) override { return Outcome(); }
  int OpenCommunicator(const void*, std::int32_t, std::int32_t, void**, const char*) override { return Outcome(); }
  int CloseCommunicator(void*, const char*) override { return Outcome(); }
  bool IsCapturing(void*) noexcept override { return false; }
  int Adopt(Gauge*, void*, const void*) override { return LG_UNAVAILABLE; }

 protected:
  virtual int Outcome() { return LG_UNAVAILABLE; }
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_KERNELS_HOST_IDLE_BACKEND_H_
