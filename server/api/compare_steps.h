// Two runs over the same data, step by step: how much better is one, and how sure is that? Pure.
//
// Steps are paired by number, and a pair counts only if both runs saw the same targets; then most of the noise of a batch is in both losses and
// leaves the difference. Differences of neighbouring steps still depend on each other (the models' states do), so the band is not made of single
// steps but of batch means: 32 stretches of consecutive pairs, equally long in steps; while neighbouring means are correlated (lag-1 coefficient
// above 1.645 / sqrt(batches), one-sided 5 %), half as many, down to 8. The band is mean +- t(97.5 %, batches - 1) * standard error of the batch
// means (method of batch means: Law and Kelton, Simulation Modeling and Analysis, chapter 9).
//
// Rows of thinned steps stand for all their steps: they are paired with rows or single steps that cover exactly the same ones.
#ifndef LOSSGAUGE_SERVER_API_COMPARE_STEPS_H_
#define LOSSGAUGE_SERVER_API_COMPARE_STEPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "lossgauge/v1/lossgauge.pb.h"

namespace lossgauge::api {

// A step, or a row of thinned ones.
struct ComparedStep {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::uint64_t steps = 1;
  std::uint64_t sequence = 0;
  std::uint64_t unmasked_tokens = 0;     // sum over the steps
  std::uint64_t target_fingerprint = 0;  // sum over the steps mod 2^64; 0 = not measured
  bool complete = true;
  std::optional<double> loss_nats;  // mean over the steps; absent unless all of it was finite
};

// Where a step was trained more than once, the newest pass counts, the greatest sequence. Fills all but the names of the runs.
v1::Comparison CompareSteps(std::vector<ComparedStep> a, std::vector<ComparedStep> b);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_COMPARE_STEPS_H_
