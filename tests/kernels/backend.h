// What the conformance suite needs of a backend. A backend places the tensors where its kernels can read them (guard pages
// around them on the CPU, device memory on a GPU), fills every output with NaN first, runs the call of the C ABI, and brings
// everything back as host values.
#ifndef LOSSGAUGE_TESTS_KERNELS_BACKEND_H_
#define LOSSGAUGE_TESTS_KERNELS_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::test {

// A gauge's counters, seen through its ring.
class Telemetry {
 public:
  virtual ~Telemetry() = default;
  virtual lg_gauge* gauge() = 0;
  // Ends the step and returns the record of block 0.
  virtual lg_step_record Publish() = 0;
};

struct TelemetryOptions {
  std::int64_t vocab_size = 0;
  std::vector<std::uint8_t> token_bytes;
  // Tensor-parallel ranks, and this one's real columns; 0 = all that follow the offset.
  std::int32_t ranks = 1, rank = 0;
  std::int64_t shard_offset = 0, shard_columns = 0;
};

// One call. Sizes and options are those of lg_cross_entropy_args; values are host doubles, rounded to the dtype on the way.
struct Problem {
  int dtype = LG_FP32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0;  // 0 = columns; logits of gaps are NaN
  std::int64_t grad_row_stride = 0;
  std::int64_t vocab_size = 0;
  std::vector<double> logits;         // [rows, columns]
  std::vector<std::int64_t> targets;  // [rows]
  int target_dtype = LG_INT64;
  std::int64_t target_stride = 1;
  std::int64_t ignore_index = -100;
  double label_smoothing = 0, z_loss_weight = 0, logit_scale = 1, logit_softcap = 0;
  int reduction = LG_MEAN;
  double denominator = 0;
  double denominator_by_pointer = 0;  // 0 = by value
  std::vector<float> upstream;        // empty = NULL, one = scalar, rows = one per token
  float grad_scale = 1;
  bool by_grad_scale_pointer = false;
  bool wants_grad = true, wants_losses = true, wants_log_z = true, wants_loss = true;
  bool in_place = false;
  enum class Call { kForward, kBackward, kObserve } call = Call::kForward;
  Telemetry* telemetry = nullptr;
  int block = -1;
  std::int64_t position_base = 0;
  std::vector<std::int64_t> positions;
  int threads = 1;
  bool flush_left = false;       // tensors begin at a guard page instead of ending at one
  std::int64_t shift_bytes = 0;  // moves tensors away from alignment (a multiple of the element size)
};

struct Outcome {
  int code = -1;
  std::string message;
  std::vector<float> losses, log_z;  // of NaN where nothing was written
  float loss = 0;
  std::vector<double> grad;                 // [rows, columns]
  std::vector<unsigned char> grad_bytes;    // the same as emitted
  std::vector<unsigned char> logits_bytes;  // [rows, columns] after the call
  std::vector<unsigned char> logits_bytes_before;
  bool gaps_unharmed = true;  // elements between rows kept their bytes, in logits and gradient
};

struct LinearProblem;  // linear_backend.h
struct LinearOutcome;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string Name() const = 0;
  // True if alignment and dtype of the same values change no bit of a result. A backend that takes another kernel then adds in another order.
  virtual bool HasSameBitsForAnyLayout() const { return true; }
  // Of losses closer together than the promised accuracy, the same one is the largest as in float64.
  virtual bool OrdersNearLossesExactly() const { return HasSameBitsForAnyLayout(); }
  // Tensors are in a device's memory.
  virtual bool IsDevice() const { return false; }
  virtual Outcome Run(const Problem& problem) = 0;
  virtual LinearOutcome RunLinear(const LinearProblem& problem) = 0;
  virtual std::unique_ptr<Telemetry> OpenTelemetry(const TelemetryOptions& options) = 0;
};

// The backend under test in this binary.
Backend& TestedBackend();

// A problem of recipe rows, wanting everything.
Problem MakeProblem(std::vector<double> logits, std::vector<std::int64_t> targets);

// One launch with telemetry: outcome and record.
struct Observed {
  Outcome outcome;
  lg_step_record record;
};
Observed RunObserved(Problem problem, const TelemetryOptions& options = {});

// Values of a record's sums, in nats or tokens.
double Value(lg_fixed128 sum);

// sqrt of the sum of squares.
double Norm(const std::vector<double>& values);

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_BACKEND_H_
