#include "client/cpp/examples/train_text/byte_pairs.h"

#include <unordered_map>

#include "client/cpp/examples/train_text/text_corpus.h"

namespace lossgauge::train_text {
namespace {

using Pair = std::uint64_t;  // first token in the high half
Pair MakePair(std::int32_t first, std::int32_t second) {
  return static_cast<Pair>(static_cast<std::uint32_t>(first)) << 32 | static_cast<std::uint32_t>(second);
}

using PairCounts = std::unordered_map<Pair, std::int64_t>;

// Replaces each pair from left to right and keeps the counts of all neighbouring pairs true.
void Merge(Pair pair, std::int32_t token, std::vector<std::int32_t>* document, PairCounts* counts) {
  const auto first = static_cast<std::int32_t>(pair >> 32), second = static_cast<std::int32_t>(pair);
  std::vector<std::int32_t>& t = *document;
  std::size_t out = 0;
  for (std::size_t i = 0; i < t.size(); ++out) {
    if (i + 1 < t.size() && t[i] == first && t[i + 1] == second) {
      --(*counts)[pair];
      if (out > 0) {
        --(*counts)[MakePair(t[out - 1], first)];
        ++(*counts)[MakePair(t[out - 1], token)];
      }
      if (i + 2 < t.size()) {
        --(*counts)[MakePair(second, t[i + 2])];
        ++(*counts)[MakePair(token, t[i + 2])];
      }
      t[out] = token;
      i += 2;
    } else {
      t[out] = t[i];
      ++i;
    }
  }
  t.resize(out);
}

}  // namespace

std::vector<std::uint8_t> LearnBytePairs(std::int64_t vocab_size, std::vector<std::vector<std::int32_t>>* documents) {
  std::vector<std::uint8_t> token_bytes(static_cast<std::size_t>(kMinVocabSize), 1);
  token_bytes[kEndToken] = 0;
  PairCounts counts;
  if (vocab_size > kMinVocabSize) {
    for (const std::vector<std::int32_t>& t : *documents) {
      for (std::size_t i = 0; i + 1 < t.size(); ++i) ++counts[MakePair(t[i], t[i + 1])];
    }
  }
  while (static_cast<std::int64_t>(token_bytes.size()) < vocab_size) {
    Pair best = 0;
    std::int64_t best_count = 1;
    for (auto it = counts.begin(); it != counts.end();) {
      if (it->second <= 0) {
        it = counts.erase(it);
        continue;
      }
      const std::size_t bytes = std::size_t{token_bytes[it->first >> 32]} + token_bytes[it->first & 0xffffffffu];
      const bool better = it->second > best_count || (it->second == best_count && best_count > 1 && it->first < best);
      if (better && bytes <= 255) best = it->first, best_count = it->second;
      ++it;
    }
    if (best_count < 2) break;
    const auto token = static_cast<std::int32_t>(token_bytes.size());
    token_bytes.push_back(static_cast<std::uint8_t>(token_bytes[best >> 32] + token_bytes[best & 0xffffffffu]));
    for (std::vector<std::int32_t>& document : *documents) Merge(best, token, &document, &counts);
  }
  return token_bytes;
}

}  // namespace lossgauge::train_text
