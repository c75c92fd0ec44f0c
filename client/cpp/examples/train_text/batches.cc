#include "client/cpp/examples/train_text/batches.h"

#include <algorithm>
#include <numeric>

#include "client/cpp/examples/train_text/random.h"

namespace lossgauge::train_text {
namespace {

enum Stream : std::uint64_t { kOrder = 2, kOffset = 3 };

void AppendWindow(const TokenStream& stream, const BatchShape& shape, std::int64_t start, Batch* batch) {
  for (std::int64_t i = start; i < start + shape.length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    for (std::int64_t back = shape.context_length; back >= 1; --back) {
      const std::int64_t from = i - back;
      batch->context.push_back(from < stream.document_start[at] ? kEndToken : stream.tokens[static_cast<std::size_t>(from)]);
    }
    batch->targets.push_back(stream.is_prompt[at] ? kIgnoreIndex : stream.tokens[at]);
  }
}

}  // namespace

std::int64_t Batch::unmasked() const {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target != kIgnoreIndex; });
}

Batch MakeBatch(const TokenStream& stream, const BatchShape& shape, std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t last) {
  const auto draw = [&](Stream purpose, std::int64_t index) {
    return RandomBits(seed, purpose, static_cast<std::uint64_t>(step * shape.sequences + index));
  };
  std::vector<std::int64_t> strata(static_cast<std::size_t>(shape.sequences));
  std::iota(strata.begin(), strata.end(), 0);
  for (std::int64_t i = shape.sequences - 1; i > 0; --i) {
    std::swap(strata[static_cast<std::size_t>(i)], strata[draw(kOrder, i) % static_cast<std::uint64_t>(i + 1)]);
  }
  Batch batch;
  batch.first_position = first * shape.length;
  const auto total = static_cast<std::int64_t>(stream.tokens.size());
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t stratum = strata[static_cast<std::size_t>(i)];
    const std::int64_t begin = total * stratum / shape.sequences, end = total * (stratum + 1) / shape.sequences;
    const auto offset = static_cast<std::int64_t>(draw(kOffset, stratum) % static_cast<std::uint64_t>(std::max<std::int64_t>(1, end - begin)));
    AppendWindow(stream, shape, std::min(begin + offset, total - shape.length), &batch);
  }
  return batch;
}

Batch MakeHeldOutBatch(const TokenStream& stream, const BatchShape& shape, std::int64_t first, std::int64_t stride, std::int64_t limit) {
  Batch batch;
  const std::int64_t windows = std::min(limit, static_cast<std::int64_t>(stream.tokens.size()) / shape.length);
  batch.first_position = first * shape.length;
  for (std::int64_t i = first; i < windows; i += stride) AppendWindow(stream, shape, i * shape.length, &batch);
  return batch;
}

}  // namespace lossgauge::train_text
