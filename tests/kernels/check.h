// Compares what a backend did with the oracle, with the tolerances of the numerics contract.
#ifndef LOSSGAUGE_TESTS_KERNELS_CHECK_H_
#define LOSSGAUGE_TESTS_KERNELS_CHECK_H_

#include "tests/kernels/backend.h"
#include "tests/kernels/oracle.h"

namespace lossgauge::test {

// Losses, log Z, gradient and the scalar loss, as far as they were wanted.
void ExpectOutcome(const Problem& problem, const Outcome& outcome, const Oracle& oracle);

// The step record of one launch.
void ExpectRecord(const Problem& problem, const Outcome& outcome, const lg_step_record& record, const Oracle& oracle);

// |value - right| within `relative`, and `wrong` told apart by the same tolerance.
void ExpectRightNotWrong(double value, double right, double wrong, double relative = 1e-6);

// Runs with telemetry and compares everything.
void ExpectLikeOracle(const Problem& problem);

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_CHECK_H_
