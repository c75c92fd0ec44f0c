// A vocabulary learnt from the text: bytes, the end token, and pairs of neighbouring tokens merged in order of frequency.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_BYTE_PAIRS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_BYTE_PAIRS_H_

#include <cstdint>
#include <vector>

namespace lossgauge::train_text {

// Replaces pairs in `documents` (bytes at first) until the vocabulary has vocab_size tokens, no pair occurs twice, or the only pairs left are
// longer than 255 bytes. Ties go to the smaller pair, so the result depends on the text alone. Returns the bytes of each token.
std::vector<std::uint8_t> LearnBytePairs(std::int64_t vocab_size, std::vector<std::vector<std::int32_t>>* documents);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_BYTE_PAIRS_H_
