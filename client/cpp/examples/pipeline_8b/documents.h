// The labels of a step: packed documents whose prompts and boundaries are masked.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_DOCUMENTS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_DOCUMENTS_H_

#include <cstdint>
#include <vector>

#include "client/cpp/examples/pipeline_8b/options.h"

namespace lossgauge::pipeline_8b {

struct Labels {
  std::vector<std::int64_t> targets;  // [tokens], -100 where nothing is to be predicted
  std::int64_t unmasked = 0;
};
// The same on every rank. About four of five positions are unmasked.
Labels MakeLabels(const Options& options, std::int64_t step);

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_DOCUMENTS_H_
