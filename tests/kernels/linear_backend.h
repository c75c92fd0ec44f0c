// What the conformance suite asks a backend about linear cross-entropy: one call, with host values in and out, as backend.h does for existing logits.
#ifndef LOSSGAUGE_TESTS_KERNELS_LINEAR_BACKEND_H_
#define LOSSGAUGE_TESTS_KERNELS_LINEAR_BACKEND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"
#include "tests/kernels/backend.h"

namespace lossgauge::test {

struct LinearProblem {
  // Targets, options, reduction, outputs, upstream, telemetry and threads; its call is that of the problem. Its logits are filled in by AsProblem.
  Problem loss;
  int dtype = LG_FP32;
  int logits_dtype = -1;
  std::int64_t rows = 0, width = 0, columns = 0;
  std::vector<double> hidden;  // [rows, width]
  std::vector<double> weight;  // [columns, width]
  std::vector<double> bias;    // [columns]; empty = NULL
  std::int64_t hidden_stride = 0, weight_stride = 0, grad_hidden_stride = 0, grad_weight_stride = 0;  // 0 = width; gaps are NaN
  bool wants_grad_hidden = true, wants_grad_weight = true, wants_grad_bias = true;  // the last only with a bias
  int head_grad_dtype = LG_FP32;
  bool accumulate = false;
  std::vector<double> grad_weight_before, grad_bias_before;  // empty = NaN
  std::int64_t chunk_rows = 0, memory_budget = 0;
  bool gives_workspace = false;  // of the size that the plan asks for, between guard pages
  bool head_grad_signal = true;
  std::int64_t most_unmasked_rows = -1;
};

struct LinearOutcome {
  int code = -1;
  std::string message;
  lg_linear_plan plan{};
  std::vector<float> losses, log_z;
  float loss = 0;
  std::vector<double> grad_hidden, grad_weight, grad_bias;
  std::vector<unsigned char> grad_hidden_bytes, grad_weight_bytes, grad_bias_bytes;
  bool gaps_unharmed = true;
};

// Rows [rows, width] of the recipes, wanting everything.
LinearProblem MakeLinearProblem(std::vector<double> hidden, std::vector<double> weight, std::vector<std::int64_t> targets);

// As the problem's dtype holds them.
std::vector<double> Rounded(const LinearProblem& problem, const std::vector<double>& values);

// The same loss on logits that are all there: float64 products of the rounded tensors, to be rounded to the dtype of a chunk of logits (`logits_dtype`
// -1 is taken as `otherwise`).
Problem AsProblem(const LinearProblem& problem, int otherwise = LG_FP32);

struct LinearObserved {
  LinearOutcome outcome;
  lg_step_record record;
};
LinearObserved RunLinearObserved(LinearProblem problem, const TelemetryOptions& options = {});

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_LINEAR_BACKEND_H_
