#include "client/cpp/examples/pipeline_8b/documents.h"

#include <algorithm>

#include "client/cpp/examples/train_text/random.h"
#include "lossgauge/lossgauge.h"

namespace lossgauge::pipeline_8b {

Labels MakeLabels(const Options& options, std::int64_t step) {
  const auto seed = static_cast<std::uint64_t>(options.seed), at_step = static_cast<std::uint64_t>(step);
  const auto draw = [&](std::uint64_t stream, std::uint64_t index) { return train_text::RandomUniform(seed + 17 * at_step, stream, index); };
  std::vector<std::int64_t> tokens, ends{0}, prompts;
  for (std::int64_t t = 0; t < options.tokens(); ++t) {
    tokens.push_back(static_cast<std::int64_t>(draw(1, static_cast<std::uint64_t>(t)) * static_cast<double>(options.vocab_size)));
  }
  for (std::int64_t begin = 0; begin < options.tokens();) {
    // Documents end with their sequence at the latest.
    const std::int64_t left = options.length - begin % options.length;
    const auto wish = static_cast<std::int64_t>(static_cast<double>(options.length) * (0.06 + 0.5 * draw(2, ends.size())));
    const std::int64_t length = std::min(left, std::max<std::int64_t>(2, wish));
    prompts.push_back(static_cast<std::int64_t>(0.4 * draw(3, ends.size()) * static_cast<double>(length)));
    begin += length;
    ends.push_back(begin);
  }
  Labels labels;
  labels.targets.resize(tokens.size());
  std::int64_t counts[4] = {};
  lg_pack_labels_args args;
  lg_pack_labels_args_init(&args);
  args.tokens = tokens.data();
  args.count = options.tokens();
  args.cu_seqlens = ends.data();
  args.documents = static_cast<std::int64_t>(prompts.size());
  args.prompt_lengths = prompts.data();
  args.labels = labels.targets.data();
  args.counts = counts;
  if (lg_pack_labels(&args) == LG_OK) labels.unmasked = counts[3];
  return labels;
}

}  // namespace lossgauge::pipeline_8b
