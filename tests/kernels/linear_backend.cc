#include "tests/kernels/linear_backend.h"

#include <utility>

#include "tests/kernels/elements.h"

namespace lossgauge::test {

LinearProblem MakeLinearProblem(std::vector<double> hidden, std::vector<double> weight, std::vector<std::int64_t> targets) {
  LinearProblem problem;
  problem.rows = static_cast<std::int64_t>(targets.size());
  problem.width = static_cast<std::int64_t>(hidden.size()) / problem.rows;
  problem.columns = static_cast<std::int64_t>(weight.size()) / problem.width;
  problem.hidden = std::move(hidden);
  problem.weight = std::move(weight);
  problem.loss.targets = std::move(targets);
  return problem;
}

std::vector<double> Rounded(const LinearProblem& problem, const std::vector<double>& values) {
  std::vector<double> rounded;
  for (const double value : values) rounded.push_back(RoundTo(problem.dtype, value));
  return rounded;
}

Problem AsProblem(const LinearProblem& problem, int otherwise) {
  Problem loss = problem.loss;
  loss.dtype = problem.logits_dtype == -1 ? otherwise : problem.logits_dtype;
  loss.rows = problem.rows;
  loss.columns = problem.columns;
  loss.logits.resize(static_cast<std::size_t>(problem.rows * problem.columns));
  const std::vector<double> hidden = Rounded(problem, problem.hidden), weight = Rounded(problem, problem.weight), bias = Rounded(problem, problem.bias);
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const double* const h = hidden.data() + i * problem.width;
    for (std::int64_t j = 0; j < problem.columns; ++j) {
      const double* const w = weight.data() + j * problem.width;
      double sum = 0;
      for (std::int64_t k = 0; k < problem.width; ++k) sum += h[k] * w[k];
      if (!bias.empty()) sum += bias[static_cast<std::size_t>(j)];
      loss.logits[static_cast<std::size_t>(i * problem.columns + j)] = sum;
    }
  }
  return loss;
}

LinearObserved RunLinearObserved(LinearProblem problem, const TelemetryOptions& options) {
  static const std::unique_ptr<Telemetry> shared = TestedBackend().OpenTelemetry({1, {}});
  const auto own = options.token_bytes.empty() ? nullptr : TestedBackend().OpenTelemetry(options);
  Telemetry* const telemetry = own != nullptr ? own.get() : shared.get();
  problem.loss.telemetry = telemetry;
  LinearObserved observed;
  observed.outcome = TestedBackend().RunLinear(problem);
  observed.record = telemetry->Publish();
  return observed;
}

}  // namespace lossgauge::test
