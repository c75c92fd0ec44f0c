#include "tests/kernels/vocab_parallel_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/kernels/c_abi_backend.h"
#include "tests/kernels/check.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/vocab_parallel_calls.h"

namespace lossgauge::test {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

std::vector<Shard> ShardsOf(const std::vector<std::int64_t>& widths) {
  std::vector<Shard> shards;
  std::int64_t offset = 0;
  for (const std::int64_t width : widths) {
    shards.push_back({offset, width, width == 0 ? 1 : 0});
    offset += width;
  }
  return shards;
}

std::vector<Shard> EvenShards(std::int64_t vocab, int ranks) {
  std::vector<std::int64_t> widths;
  for (std::int64_t rank = 0; rank < ranks; ++rank) widths.push_back(vocab * (rank + 1) / ranks - vocab * rank / ranks);
  return ShardsOf(widths);
}

RankCall::RankCall(const Problem& problem, const Shard& shard, std::int64_t vocab, int ranks, int rank) {
  const std::int64_t width = shard.columns + shard.padding;
  const auto rows = static_cast<std::size_t>(problem.rows);
  logits.resize(rows * static_cast<std::size_t>(width * BytesOf(problem.dtype)), 0xff);
  grad.resize(logits.size(), 0x5a);
  targets = problem.targets;
  upstream = problem.upstream;
  losses.resize(rows, kUnwritten);
  log_z.resize(rows, kUnwritten);
  contribution = ExchangeMemory(static_cast<std::size_t>(ContributionBytes(problem.rows)));

  lg_vocab_parallel_args_init(&args);
  args.group_size = ranks;
  args.group_index = rank;
  args.vocab_size = vocab;
  args.shard_offset = shard.offset;
  args.shard_columns = shard.columns;
  args.loss.logits = logits.data();
  args.loss.logits_dtype = problem.dtype;
  args.loss.rows = problem.rows;
  args.loss.columns = width;
  args.loss.targets = targets.data();
  SetOptions(problem, &args.loss);
  args.loss.losses = losses.data();
  args.loss.log_z = log_z.data();
  args.loss.grad_logits = problem.wants_grad ? grad.data() : nullptr;
  if (problem.in_place) args.loss.grad_logits = logits.data();
  args.loss.upstream = upstream.empty() ? nullptr : upstream.data();
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    for (std::int64_t j = 0; j < shard.columns; ++j) SetLogit(i, j, problem.logits[static_cast<std::size_t>(i * problem.columns + shard.offset + j)]);
  }
}

void RankCall::SetLogit(std::int64_t row, std::int64_t column, double value) {
  Store(args.loss.logits_dtype, value, logits.data() + (row * args.loss.columns + column) * BytesOf(args.loss.logits_dtype));
}
double RankCall::Logit(std::int64_t row, std::int64_t column) const {
  return Load(args.loss.logits_dtype, logits.data() + (row * args.loss.columns + column) * BytesOf(args.loss.logits_dtype));
}
double RankCall::Gradient(std::int64_t row, std::int64_t column) const {
  const auto* from = static_cast<const unsigned char*>(args.loss.grad_logits);
  return Load(args.loss.logits_dtype, from + (row * args.loss.columns + column) * BytesOf(args.loss.logits_dtype));
}

bool RankCall::Unwritten() const {
  const auto untouched = [](float value) { return value == kUnwritten; };
  return std::all_of(losses.begin(), losses.end(), untouched) && std::all_of(log_z.begin(), log_z.end(), untouched) && untouched(loss) &&
         std::all_of(grad.begin(), grad.end(), [](unsigned char byte) { return byte == 0x5a; });
}

void RankCall::Begin() {
  args.loss.targets = targets.data();  // a test may have put others there
  code = CallBegin(args, contribution);
  message = code != LG_OK ? lg_last_error() : "";
}
void RankCall::Finish(const ExchangeMemory& gathered) {
  if (code != LG_OK) return;
  if (args.loss.reduction != LG_NONE) args.loss.loss = &loss;
  code = CallFinish(args, gathered);
  message = code != LG_OK ? lg_last_error() : "";
}

Ranks::Ranks(const Problem& problem, const std::vector<Shard>& shards) : problem_(problem), shards_(shards) {
  const std::int64_t vocab = problem.vocab_size != 0 ? problem.vocab_size : problem.columns;
  calls.reserve(shards.size());
  for (std::size_t rank = 0; rank < shards.size(); ++rank) calls.emplace_back(problem, shards[rank], vocab, static_cast<int>(shards.size()), static_cast<int>(rank));
}

void Ranks::Begin() {
  for (RankCall& call : calls) call.Begin();
}

void Ranks::Finish(const Tamper& tamper) {
  // Ranks that believe in other numbers of rows have contributions of other sizes: as much of each as there is room for.
  for (std::size_t receiver = 0; receiver < calls.size(); ++receiver) {
    const std::size_t bytes = calls[receiver].contribution.bytes();
    ExchangeMemory gathered(bytes * calls.size());
    for (std::size_t sender = 0; sender < calls.size(); ++sender) {
      const ExchangeMemory& sent = calls[sender].contribution;
      std::memcpy(gathered.data() + sender * bytes, sent.data(), std::min(bytes, sent.bytes()));
    }
    if (tamper) tamper(static_cast<int>(receiver), gathered);
    calls[receiver].Finish(gathered);
  }
}

std::vector<double> Ranks::Gradient() const {
  const std::int64_t vocab = calls[0].args.vocab_size;
  std::vector<double> whole(static_cast<std::size_t>(problem_.rows * vocab));
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    for (std::int64_t i = 0; i < problem_.rows; ++i) {
      for (std::int64_t j = 0; j < shards_[rank].columns; ++j) {
        whole[static_cast<std::size_t>(i * vocab + shards_[rank].offset + j)] = calls[rank].Gradient(i, j);
      }
    }
  }
  return whole;
}

void Ranks::ExpectOneOutcome() const {
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    ASSERT_EQ(calls[rank].code, LG_OK) << "rank " << rank << ": " << calls[rank].message;
    EXPECT_TRUE(SameBits(calls[rank].losses, calls[0].losses)) << "losses of rank " << rank;
    EXPECT_TRUE(SameBits(calls[rank].log_z, calls[0].log_z)) << "log Z of rank " << rank;
    EXPECT_TRUE(SameBits({calls[rank].loss}, {calls[0].loss})) << "loss of rank " << rank << ": " << calls[rank].loss << ", of rank 0: " << calls[0].loss;
    for (std::int64_t i = 0; i < problem_.rows; ++i) {
      for (std::int64_t j = shards_[rank].columns; j < calls[rank].args.loss.columns && calls[rank].args.loss.grad_logits != nullptr; ++j) {
        EXPECT_EQ(calls[rank].Gradient(i, j), 0) << "padding";
      }
    }
  }
}

void Ranks::ExpectLikeOracle() const {
  ExpectOneOutcome();
  if (testing::Test::HasFatalFailure()) return;
  // Padding of the shards is not the oracle's: real columns only.
  Problem real = problem_;
  real.columns = calls[0].args.vocab_size;
  real.vocab_size = 0;
  real.logits.clear();
  for (std::int64_t i = 0; i < problem_.rows; ++i) {
    const auto row = problem_.logits.begin() + i * problem_.columns;
    real.logits.insert(real.logits.end(), row, row + real.columns);
  }
  Outcome outcome;
  outcome.code = LG_OK;
  outcome.losses = calls[0].losses;
  outcome.log_z = calls[0].log_z;
  outcome.loss = calls[0].loss;
  if (real.wants_grad) outcome.grad = Gradient();
  ExpectOutcome(real, outcome, Judge(real));
}

lg_shard_header* HeaderIn(ExchangeMemory& gathered, std::int64_t rows, int sender) {
  return reinterpret_cast<lg_shard_header*>(gathered.data() + sender * ContributionBytes(rows));
}
lg_shard_row* RowIn(ExchangeMemory& gathered, std::int64_t rows, int sender, std::int64_t row) {
  return reinterpret_cast<lg_shard_row*>(gathered.data() + sender * ContributionBytes(rows) + LG_SHARD_HEADER_BYTES) + row;
}

void TagAgain(ExchangeMemory& gathered, std::int64_t rows, int sender) {
  lg_shard_header* header = HeaderIn(gathered, rows, sender);
  const std::uint64_t salt = lg_shard_salt(header->step, header->micro_batch, header->sender);
  std::uint64_t words[LG_SHARD_HEADER_BYTES / 8];
  std::memcpy(words, header, sizeof words);
  header->tag = lg_shard_header_tag(salt, words);
  for (std::int64_t i = 0; i < rows; ++i) {
    lg_shard_row* row = RowIn(gathered, rows, sender, i);
    std::memcpy(words, row, sizeof *row);
    row->tag = lg_shard_row_tag(salt, i, words);
  }
}

}  // namespace lossgauge::test
