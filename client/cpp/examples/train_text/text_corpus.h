// Real text as a stream of tokens, cut into documents with a prompt and a body.
//
// A document is a run of paragraphs of at least 400 bytes within one file. Its first line (at most 64 bytes) is the prompt: it is read
// as context but not trained on, as in instruction tuning, so unmasked counts differ from batch to batch. An end token follows each
// document; context never reaches across it.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_TEXT_CORPUS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_TEXT_CORPUS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lossgauge::train_text {

inline constexpr std::int32_t kEndToken = 256;  // 0 to 255 are the bytes, above are learnt pairs
inline constexpr std::int64_t kMinVocabSize = 257;
inline constexpr std::int64_t kMaxVocabSize = 8192;

struct TokenStream {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> document_start;  // of each token: index of the first token of its document
  std::vector<std::uint8_t> is_prompt;
};

struct TextCorpus {
  std::int64_t vocab_size = kMinVocabSize;
  std::vector<std::uint8_t> token_bytes;  // [vocab_size]; 0 for the end token
  TokenStream train;
  TokenStream held_out;  // every 20th document
};

// A regular file, or all regular files of a directory in the order of their names (links not followed). Returns "" or what is wrong.
std::string ReadText(const std::string& path, std::vector<std::string>* files);

// Documents of one file, in order; together they are the file.
std::vector<std::string_view> CutDocuments(std::string_view file);
// Bytes of a document's prompt.
std::size_t PromptBytes(std::string_view document);

// vocab_size in [kMinVocabSize, kMaxVocabSize]; above the minimum the most frequent pairs are merged, one by one. The vocabulary can stay
// smaller when the text runs out of pairs: see TextCorpus::vocab_size.
TextCorpus BuildCorpus(const std::vector<std::string>& files, std::int64_t vocab_size);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_TEXT_CORPUS_H_
