// Which tokens a step trains on: a pure function of (seed, step), whatever the number of ranks and micro-batches.
//
// A step has `sequences` windows of `length` positions. The text is cut into as many strata, one window is drawn from each, and the windows
// are dealt out in an order that changes with the step: every batch sees all of the text alike, which keeps the loss quiet.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_BATCHES_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_BATCHES_H_

#include <cstdint>
#include <vector>

#include "client/cpp/examples/train_text/text_corpus.h"

namespace lossgauge::train_text {

inline constexpr std::int32_t kIgnoreIndex = -100;

struct Batch {
  std::int64_t first_position = 0;    // position in the step of row 0
  std::vector<std::int32_t> context;  // [rows, context length], oldest first; the end token stands before a document's start
  std::vector<std::int32_t> targets;  // [rows]; kIgnoreIndex in prompts
  std::int64_t unmasked() const;
  std::int64_t rows() const { return static_cast<std::int64_t>(targets.size()); }
};

struct BatchShape {
  std::int64_t sequences = 0;       // of a step, over all ranks and micro-batches
  std::int64_t length = 0;          // positions of a sequence
  std::int64_t context_length = 0;  // tokens
};

// Sequences [first, last) of the step.
Batch MakeBatch(const TokenStream& stream, const BatchShape& shape, std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t last);

// A fixed share of a held-out stream: windows first, first + stride, ... of at most `limit` windows that lie side by side.
Batch MakeHeldOutBatch(const TokenStream& stream, const BatchShape& shape, std::int64_t first, std::int64_t stride, std::int64_t limit);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_BATCHES_H_
