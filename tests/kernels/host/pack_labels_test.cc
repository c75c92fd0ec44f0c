// Labels of packed documents against a plain loop, and what goes wrong with shifts and slices elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lossgauge/lossgauge.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace lossgauge {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

struct Packed {
  int code = LG_OK;
  Numbers labels;
  std::int64_t counts[4] = {-1, -1, -1, -1};
};

struct Given {
  Numbers tokens, cu_seqlens, prompts;
  bool has_prompts = false, has_pad = false;
  std::int64_t pad = 0;
};

Packed Pack(const Given& given) {
  Packed packed;
  packed.labels.assign(given.tokens.size(), -7);
  lg_pack_labels_args args;
  lg_pack_labels_args_init(&args);
  args.tokens = given.tokens.data();
  args.count = static_cast<std::int64_t>(given.tokens.size());
  args.cu_seqlens = given.cu_seqlens.data();
  args.documents = static_cast<std::int64_t>(given.cu_seqlens.size()) - 1;
  args.prompt_lengths = given.has_prompts ? given.prompts.data() : nullptr;
  args.has_pad = given.has_pad ? 1 : 0;
  args.pad = given.pad;
  args.labels = packed.labels.data();
  args.counts = packed.counts;
  packed.code = lg_pack_labels(&args);
  return packed;
}

Packed ByHand(const Given& given) {
  Packed packed;
  std::fill_n(packed.counts, 4, 0);
  const auto count = static_cast<std::int64_t>(given.tokens.size());
  for (std::int64_t t = 0; t < count; ++t) {
    std::size_t owner = 0;
    const std::size_t documents = given.cu_seqlens.size() - 1;
    while (owner < documents && !(given.cu_seqlens[owner] <= t && t < given.cu_seqlens[owner + 1])) ++owner;
    int reason = 3;
    if (owner < documents && t + 1 == given.cu_seqlens[owner + 1]) {
      reason = 0;
    } else if (owner == documents || (given.has_pad && given.tokens[static_cast<std::size_t>(t) + 1] == given.pad)) {
      reason = 1;
    } else if (given.has_prompts && t + 1 < given.cu_seqlens[owner] + given.prompts[owner]) {
      reason = 2;
    }
    ++packed.counts[reason];
    packed.labels.push_back(reason == 3 ? given.tokens[static_cast<std::size_t>(t) + 1] : -100);
  }
  return packed;
}

TEST(PackLabels, TwoDocumentsWithPromptsAndPadding) {
  const Packed packed = Pack({{10, 11, 12, 13, 20, 21, 22, 0, 0}, {0, 4, 7}, {2, 1}, true, true, 0});
  ASSERT_EQ(packed.code, LG_OK) << lg_last_error();
  // 11 is prompt; 12 is the answer's first token, asked for at the prompt's last position; 20 belongs to another document than 13.
  EXPECT_THAT(packed.labels, ElementsAre(-100, 12, 13, -100, 21, 22, -100, -100, -100));
  EXPECT_THAT(packed.counts, ElementsAre(2, 2, 1, 4));
}

TEST(PackLabels, NothingIsShiftedTwice) {
  const Packed packed = Pack({{100, 101, 102, 103, 104}, {0, 5}, {}, false, false, 0});
  EXPECT_THAT(packed.labels, ElementsAre(101, 102, 103, 104, -100)) << "a second shift would ask position 0 for 102";
  EXPECT_THAT(packed.counts, ElementsAre(1, 0, 0, 4));
}

TEST(PackLabels, TheFirstLabelOfADocumentAndOfAnAnswerIsNotLost) {
  // Slicing the batch instead of each document loses label 201 (documents of one batch row) or asks 103 for 200.
  const Packed packed = Pack({{100, 101, 102, 103, 200, 201}, {0, 4, 6}, {3, 0}, true, false, 0});
  EXPECT_THAT(packed.labels, ElementsAre(-100, -100, 103, -100, 201, -100));
  EXPECT_THAT(packed.counts, ElementsAre(2, 0, 2, 2));
}

TEST(PackLabels, DocumentsOfOneTokenAndOfNoneAskForNothing) {
  const Packed packed = Pack({{5, 6, 7}, {0, 0, 1, 1, 3}, {}, false, false, 0});
  EXPECT_THAT(packed.labels, ElementsAre(-100, 7, -100));
  EXPECT_THAT(packed.counts, ElementsAre(2, 0, 0, 1));
}

TEST(PackLabels, PaddingInsideADocumentIsNeverAskedFor) {
  // It is the token asked for that may be padding, not the one that asks.
  const Packed packed = Pack({{8, 0, 9, 0, 0}, {0, 5}, {}, false, true, 0});
  EXPECT_THAT(packed.labels, ElementsAre(-100, 9, -100, -100, -100));
  EXPECT_THAT(packed.counts, ElementsAre(1, 3, 0, 1));
}

TEST(PackLabels, RandomBatchesAgainstAPlainLoop) {
  std::mt19937 random(9);
  const auto below = [&random](int limit) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit)); };
  for (int round = 0; round < 2000; ++round) {
    Given given;
    given.tokens.resize(static_cast<std::size_t>(below(40)));
    for (auto& token : given.tokens) token = below(5);
    given.cu_seqlens.assign(1, 0);
    for (std::int64_t i = below(6); i > 0; --i) given.cu_seqlens.push_back(below(static_cast<int>(given.tokens.size()) + 1));
    std::sort(given.cu_seqlens.begin(), given.cu_seqlens.end());
    given.has_prompts = below(3) != 0;
    given.prompts.resize(given.cu_seqlens.size());
    for (auto& length : given.prompts) length = below(8);
    given.has_pad = below(2) != 0;
    const Packed packed = Pack(given), expected = ByHand(given);
    ASSERT_EQ(packed.code, LG_OK) << lg_last_error();
    ASSERT_EQ(packed.labels, expected.labels) << round;
    ASSERT_TRUE(std::equal(packed.counts, packed.counts + 4, expected.counts)) << round;
  }
}

TEST(PackLabels, ThirtyTwoBitsGiveTheSame) {
  const std::int32_t tokens[] = {10, 11, 12, 13}, bounds[] = {0, 4}, prompts[] = {2};
  std::int64_t labels[4];
  lg_pack_labels_args args;
  lg_pack_labels_args_init(&args);
  args.tokens = tokens;
  args.cu_seqlens = bounds;
  args.prompt_lengths = prompts;
  args.token_dtype = args.length_dtype = LG_INT32;
  args.count = 4;
  args.documents = 1;
  args.labels = labels;
  ASSERT_EQ(lg_pack_labels(&args), LG_OK) << lg_last_error();
  EXPECT_THAT(labels, ElementsAre(-100, 12, 13, -100));
}

TEST(PackLabels, BadLengthsAreNamedBeforeAnythingIsWritten) {
  const Numbers tokens = {1, 2, 3, 4, 5};
  for (const Numbers& bounds : {Numbers{1, 5}, Numbers{0, 3, 2}, Numbers{0, 6}, Numbers{-1, 5}}) {
    const Packed packed = Pack({tokens, bounds, {}, false, false, 0});
    EXPECT_EQ(packed.code, LG_INVALID_ARGUMENT);
    EXPECT_THAT(lg_last_error(), HasSubstr("cu_seqlens: expected"));
    EXPECT_EQ(packed.labels, Numbers(5, -7));
    EXPECT_EQ(packed.counts[0], -1);
  }
  EXPECT_EQ(Pack({tokens, {0, 5}, {-1}, true, false, 0}).code, LG_INVALID_ARGUMENT);
  EXPECT_THAT(lg_last_error(), HasSubstr("prompt_lengths: expected no negative number, got -1"));
}

TEST(PackLabels, BadArgumentsAreNamed) {
  const Numbers tokens = {1, 2}, bounds = {0, 2};
  Numbers labels(2);
  const auto refused = [&](auto change, const char* name) {
    lg_pack_labels_args args;
    lg_pack_labels_args_init(&args);
    args.tokens = tokens.data();
    args.cu_seqlens = bounds.data();
    args.labels = labels.data();
    args.count = 2;
    args.documents = 1;
    change(&args);
    EXPECT_NE(lg_pack_labels(&args), LG_OK) << name;
    EXPECT_THAT(lg_last_error(), HasSubstr(name));
  };
  refused([](auto* a) { a->count = -1; }, "count");
  refused([](auto* a) { a->documents = -1; }, "documents");
  refused([](auto* a) { a->token_dtype = LG_FP32; }, "token_dtype");
  refused([](auto* a) { a->length_dtype = LG_FP64; }, "length_dtype");
  refused([](auto* a) { a->tokens = nullptr; }, "tokens");
  refused([](auto* a) { a->labels = nullptr; }, "labels");
  refused([](auto* a) { a->cu_seqlens = nullptr; }, "cu_seqlens");
  refused([](auto* a) { a->labels = static_cast<std::int64_t*>(const_cast<void*>(a->tokens)); }, "labels");
  refused([](auto* a) { a->stream = a; }, "stream");
  refused([](auto* a) { a->struct_size = 8; }, "struct_size");
  EXPECT_NE(lg_pack_labels(nullptr), LG_OK);
  lg_pack_labels_args_init(nullptr);
}

}  // namespace
}  // namespace lossgauge
