#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "client/cpp/examples/train_text/batches.h"
#include "client/cpp/examples/train_text/byte_pairs.h"
#include "client/cpp/examples/train_text/text_corpus.h"
#include "tests/client/job.h"
#include "tests/scratch_directory.h"

namespace lossgauge::train_text {
namespace {

std::string Paragraphs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "Section " + std::to_string(i) + "\n" + std::string(300, static_cast<char>('a' + i % 26)) + "\n\n";
  return text;
}

TEST(CutDocuments, LosesNothingAndCutsAtBlankLines) {
  const std::string text = Paragraphs(40);
  const auto documents = CutDocuments(text);
  EXPECT_GT(documents.size(), 5u);
  std::string together;
  for (const auto document : documents) {
    EXPECT_GE(document.size(), 400u);
    EXPECT_EQ(document.substr(0, 8), "Section ");
    together += document;
  }
  EXPECT_EQ(together, text);
}

TEST(PromptBytes, AreTheFirstLineWithTextInItUpTo64Bytes) {
  EXPECT_EQ(PromptBytes("Title\nbody"), 5u);
  EXPECT_EQ(PromptBytes("\n  Title\nbody"), 8u);
  EXPECT_EQ(PromptBytes(std::string(500, 'x')), 64u);
  EXPECT_EQ(PromptBytes(""), 0u);
}

TEST(BuildCorpus, MasksPromptsAndKeepsContextInsideDocuments) {
  const TextCorpus corpus = BuildCorpus({Paragraphs(200)}, kMinVocabSize);
  ASSERT_EQ(corpus.token_bytes.size(), 257u);
  EXPECT_EQ(corpus.token_bytes[kEndToken], 0);
  EXPECT_EQ(corpus.token_bytes['e'], 1);
  EXPECT_GT(corpus.held_out.tokens.size(), 0u);
  const TokenStream& train = corpus.train;
  std::size_t prompts = 0;
  for (std::size_t i = 0; i < train.tokens.size(); ++i) {
    const auto start = static_cast<std::size_t>(train.document_start[i]);
    prompts += train.is_prompt[i];
    ASSERT_TRUE(start == 0 || train.tokens[start - 1] == kEndToken) << i;
    ASSERT_EQ(train.tokens[start], 'S');
    // "Section n" is the prompt, the newline after it is not.
    ASSERT_FALSE(i >= start + 11 && train.is_prompt[i]) << i;
  }
  EXPECT_GT(prompts, 0u);
}

TEST(LearnBytePairs, MergesTheMostFrequentPairFirstAndStopsWhenNoneIsLeft) {
  std::vector<std::vector<std::int32_t>> documents = {{'a', 'b', 'a', 'b', 'a', 'b', 'c'}, {'a', 'b', 'c'}};
  const auto bytes = LearnBytePairs(260, &documents);
  // ab (4 times) -> 257; then 257 257 and 257 c twice each: the smaller pair first, which is 257 c = 258; then nothing occurs twice.
  EXPECT_EQ(bytes.size(), 259u);
  EXPECT_EQ(bytes[257], 2);
  EXPECT_EQ(bytes[258], 3);
  EXPECT_EQ(documents[0], (std::vector<std::int32_t>{257, 257, 258}));
  EXPECT_EQ(documents[1], (std::vector<std::int32_t>{258}));
}

TEST(LearnBytePairs, KeepsTheNumberOfBytes) {
  const std::string text = Paragraphs(30);
  const TextCorpus corpus = BuildCorpus({text}, 400);
  std::size_t bytes = 0;
  for (const TokenStream* stream : {&corpus.train, &corpus.held_out}) {
    for (const std::int32_t token : stream->tokens) bytes += corpus.token_bytes[static_cast<std::size_t>(token)];
  }
  EXPECT_EQ(bytes, text.size());
  EXPECT_GT(corpus.vocab_size, kMinVocabSize);
}

TEST(MakeBatch, IsTheSameHoweverTheStepIsCut) {
  const TextCorpus corpus = BuildCorpus({Paragraphs(100)}, kMinVocabSize);
  const BatchShape shape{12, 16, 4};
  const Batch whole = MakeBatch(corpus.train, shape, 1, 5, 0, 12);
  for (const std::int64_t parts : {2, 3, 12}) {
    Batch together;
    for (std::int64_t i = 0; i < parts; ++i) {
      const Batch part = MakeBatch(corpus.train, shape, 1, 5, 12 / parts * i, 12 / parts * (i + 1));
      EXPECT_EQ(part.first_position, together.rows());
      together.context.insert(together.context.end(), part.context.begin(), part.context.end());
      together.targets.insert(together.targets.end(), part.targets.begin(), part.targets.end());
    }
    EXPECT_EQ(together.context, whole.context);
    EXPECT_EQ(together.targets, whole.targets);
  }
  EXPECT_NE(MakeBatch(corpus.train, shape, 1, 6, 0, 12).targets, whole.targets);
  EXPECT_NE(MakeBatch(corpus.train, shape, 2, 5, 0, 12).targets, whole.targets);
}

TEST(MakeBatch, GivesRanksAndMicroBatchesDifferentCounts) {
  std::vector<std::string> files;
  ASSERT_EQ(ReadText("/usr/share/common-licenses", &files), "");
  const TextCorpus corpus = BuildCorpus(files, kMinVocabSize);
  const BatchShape shape{256, 16, 8};
  int different = 0;
  for (std::int64_t step = 0; step < 50; ++step) {
    const std::int64_t first = MakeBatch(corpus.train, shape, 1, step, 0, 128).unmasked();
    const std::int64_t second = MakeBatch(corpus.train, shape, 1, step, 128, 256).unmasked();
    different += first != second;
    EXPECT_GT(first, 128 * 16 / 2);
    EXPECT_LT(first, 128 * 16);
  }
  EXPECT_GE(different, 45);
}

TEST(MakeBatch, PutsTheEndTokenBeforeADocumentAndTheTextBehindIt) {
  const TextCorpus corpus = BuildCorpus({Paragraphs(100)}, kMinVocabSize);
  const BatchShape shape{8, 64, 6};
  int boundaries = 0;
  for (std::int64_t step = 0; step < 20; ++step) {
    const Batch batch = MakeBatch(corpus.train, shape, 1, step, 0, 8);
    for (std::int64_t row = 0; row < batch.rows(); ++row) {
      const auto* context = &batch.context[static_cast<std::size_t>(row * 6)];
      bool inside = false;
      for (int i = 0; i < 6; ++i) {
        if (context[i] != kEndToken) inside = true;
        ASSERT_TRUE(!inside || context[i] != kEndToken) << "context reaches across an end";
      }
      boundaries += context[0] == kEndToken;
    }
  }
  EXPECT_GT(boundaries, 0);
}

TEST(ReadText, NamesThePathThatItCannotRead) {
  const ScratchDirectory scratch;
  std::vector<std::string> files;
  EXPECT_EQ(ReadText(scratch.path(), &files), "--text=" + scratch.path() + ": the directory holds no regular file");
  EXPECT_EQ(ReadText(scratch.path() + "/none", &files), "--text=" + scratch.path() + "/none: No such file or directory");
}

TEST(ReadText, TakesTheFilesOfADirectoryInTheOrderOfTheirNames) {
  const ScratchDirectory scratch;
  for (const char* name : {"b", "a", "c"}) std::ofstream(scratch.path() + "/" + name) << name;
  std::vector<std::string> files;
  ASSERT_EQ(ReadText(scratch.path(), &files), "");
  EXPECT_EQ(files, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace lossgauge::train_text
