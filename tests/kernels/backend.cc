#include "tests/kernels/backend.h"

#include <cmath>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::test {

Problem MakeProblem(std::vector<double> logits, std::vector<std::int64_t> targets) {
  Problem problem;
  problem.rows = static_cast<std::int64_t>(targets.size());
  problem.columns = static_cast<std::int64_t>(logits.size()) / problem.rows;
  problem.logits = std::move(logits);
  problem.targets = std::move(targets);
  return problem;
}

Observed RunObserved(Problem problem, const TelemetryOptions& options) {
  // Without a byte table a gauge knows nothing of the problem: one serves them all, a step each.
  static const std::unique_ptr<Telemetry> shared = TestedBackend().OpenTelemetry({1, {}});
  const auto own = options.token_bytes.empty() ? nullptr : TestedBackend().OpenTelemetry(options);
  Telemetry* const telemetry = own != nullptr ? own.get() : shared.get();
  problem.telemetry = telemetry;
  Observed observed;
  observed.outcome = TestedBackend().Run(problem);
  observed.record = telemetry->Publish();
  return observed;
}

double Value(lg_fixed128 sum) { return lg_fixed128_to_double(sum); }

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace lossgauge::test
