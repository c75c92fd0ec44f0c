#include "tests/kernels/vocab_parallel_linear_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/kernels/c_abi_backend.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/vocab_parallel_calls.h"

namespace lossgauge::test {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Rows [shard.offset, shard.offset + shard.columns) of [columns, width], then padding of NaN.
std::vector<double> RowsOf(const std::vector<double>& values, const Shard& shard, std::int64_t width) {
  if (values.empty()) return {};
  std::vector<double> rows(values.begin() + shard.offset * width, values.begin() + (shard.offset + shard.columns) * width);
  rows.resize(static_cast<std::size_t>((shard.columns + shard.padding) * width), std::nan(""));
  return rows;
}

}  // namespace

Tensor::Tensor(int type, const std::vector<double>& values) : Tensor(type, static_cast<std::int64_t>(values.size())) {
  for (std::size_t i = 0; i < values.size(); ++i) Store(dtype, values[i], bytes.data() + i * static_cast<std::size_t>(BytesOf(dtype)));
}
std::vector<double> Tensor::Values() const {
  std::vector<double> values;
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(BytesOf(dtype))) values.push_back(Load(dtype, bytes.data() + at));
  return values;
}

LinearRankCall::LinearRankCall(const LinearProblem& problem, const Shard& shard, std::int64_t vocab, int ranks, int rank)
    : hidden(problem.dtype, problem.hidden),
      weight(problem.dtype, RowsOf(problem.weight, shard, problem.width)),
      bias(problem.dtype, RowsOf(problem.bias, shard, 1)),
      grad_hidden(problem.dtype, problem.rows * problem.width),
      targets(problem.loss.targets),
      losses(static_cast<std::size_t>(problem.rows), RankCall::kUnwritten),
      log_z(losses),
      upstream(problem.loss.upstream),
      grad_scale(problem.loss.grad_scale),
      denominator(problem.loss.denominator_by_pointer),
      positions(problem.loss.positions) {
  const std::int64_t columns = shard.columns + shard.padding;
  grad_weight = Tensor(problem.head_grad_dtype, columns * problem.width);
  grad_bias = Tensor(problem.head_grad_dtype, columns);
  if (!problem.grad_weight_before.empty()) grad_weight = Tensor(problem.head_grad_dtype, RowsOf(problem.grad_weight_before, shard, problem.width));
  if (!problem.grad_bias_before.empty()) grad_bias = Tensor(problem.head_grad_dtype, RowsOf(problem.grad_bias_before, shard, 1));
  lg_linear_cross_entropy_args_init(&linear);
  linear.dtype = problem.dtype;
  linear.logits_dtype = problem.logits_dtype;
  linear.rows = problem.rows;
  linear.width = problem.width;
  linear.columns = columns;
  linear.head_grad_dtype = problem.head_grad_dtype;
  linear.accumulate = problem.accumulate;
  linear.chunk_rows = problem.chunk_rows;
  linear.memory_budget = problem.memory_budget;
  linear.head_grad_signal = problem.head_grad_signal;
  SetOptions(problem.loss, &linear.loss);
  if (problem.wants_grad_hidden) linear.grad_hidden = grad_hidden.bytes.data();
  if (problem.wants_grad_weight) linear.grad_weight = grad_weight.bytes.data();
  if (problem.wants_grad_bias && !problem.bias.empty()) linear.grad_bias = grad_bias.bytes.data();
  lg_vocab_parallel_linear_args_init(&args);
  args.group_size = ranks;
  args.group_index = rank;
  args.vocab_size = vocab;
  args.shard_offset = shard.offset;
  args.shard_columns = shard.columns;
  args.step = 4;
  if (problem.loss.denominator_by_pointer != 0) linear.loss.denominator_pointer = &denominator;
  if (problem.loss.by_grad_scale_pointer) linear.loss.grad_scale = &grad_scale;
  if (!upstream.empty()) linear.loss.upstream = upstream.data();
  if (!positions.empty()) linear.loss.positions = positions.data();
  linear.loss.losses = losses.data();
  linear.loss.log_z = log_z.data();
  if (problem.loss.reduction != LG_NONE) linear.loss.loss = &loss;
}

void LinearRankCall::Run() {
  linear.hidden = hidden.bytes.data();
  linear.weight = weight.bytes.data();
  linear.bias = bias.bytes.empty() ? nullptr : bias.bytes.data();
  linear.loss.targets = targets.data();
  args.linear = &linear;
  code = CallLinear(args);
  message = code != LG_OK ? lg_last_error() : "";
}

LinearRanks::LinearRanks(const LinearProblem& problem, std::vector<Shard> shards) : problem_(problem), shards_(std::move(shards)), sent_(shards_.size()) {
  const std::int64_t vocab = problem.loss.vocab_size != 0 ? problem.loss.vocab_size : problem.columns;
  const int ranks = static_cast<int>(shards_.size());
  for (int rank = 0; rank < ranks; ++rank) {
    calls.push_back(std::make_unique<LinearRankCall>(problem, shards_[static_cast<std::size_t>(rank)], vocab, ranks, rank));
  }
}

int LinearRanks::Exchange(void* seat, const void* contribution, void* gathered, std::int64_t bytes, void* stream) {
  const Seat& at = *static_cast<Seat*>(seat);
  return at.ranks->Gather(at.rank, contribution, gathered, bytes, stream);
}

int LinearRanks::Gather(int rank, const void* contribution, void* gathered, std::int64_t bytes, void* stream) {
  const auto size = static_cast<std::size_t>(bytes);
  ExchangeMemory sent(size);
  CopyFromExchange(sent.data(), contribution, size, stream);
  const int ranks = static_cast<int>(calls.size());
  std::unique_lock<std::mutex> lock(mutex_);
  all_here_.wait(lock, [&] { return taken_ == 0 || someone_left_; });  // of the round before
  if (someone_left_) return LG_UNAVAILABLE;
  sent_[static_cast<std::size_t>(rank)] = std::move(sent);
  if (++here_ == ranks) {
    taken_ = ranks;
    here_ = 0;
    all_here_.notify_all();
  }
  all_here_.wait(lock, [&] { return taken_ != 0 || someone_left_; });
  if (taken_ == 0) return LG_UNAVAILABLE;
  ExchangeMemory received(size * static_cast<std::size_t>(ranks));
  bool same_size = true;
  for (std::size_t sender = 0; sender < sent_.size(); ++sender) {
    same_size &= sent_[sender].bytes() == size;
    if (same_size) std::memcpy(received.data() + sender * size, sent_[sender].data(), size);
  }
  LinearRankCall& call = *calls[static_cast<std::size_t>(rank)];
  if (tamper_) tamper_(rank, call.exchanges, received);
  ++call.exchanges;
  if (--taken_ == 0) all_here_.notify_all();
  lock.unlock();
  CopyToExchange(gathered, received.data(), received.bytes(), stream);
  return same_size ? 0 : LG_INVALID_ARGUMENT;
}

void LinearRanks::Run(const Tamper& tamper) {
  tamper_ = tamper;
  here_ = taken_ = 0;
  someone_left_ = false;
  std::vector<Seat> seats;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) seats.push_back({this, static_cast<int>(rank)});
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    threads.emplace_back([this, rank, &seats] {
      calls[rank]->exchanges = 0;
      calls[rank]->args.exchange = Exchange;
      calls[rank]->args.exchange_context = &seats[rank];
      calls[rank]->Run();
      // Whoever waits for this rank from now on waits for nobody.
      const std::lock_guard<std::mutex> lock(mutex_);
      if (calls[rank]->code != LG_OK) someone_left_ = true, all_here_.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void LinearRanks::ExpectOneOutcome() const {
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const LinearRankCall& call = *calls[rank];
    ASSERT_EQ(call.code, LG_OK) << "rank " << rank << ": " << call.message;
    EXPECT_EQ(call.exchanges, calls[0]->exchanges);
    EXPECT_TRUE(SameBits(call.losses, calls[0]->losses)) << "losses of rank " << rank;
    EXPECT_TRUE(SameBits(call.log_z, calls[0]->log_z)) << "log Z of rank " << rank;
    EXPECT_TRUE(SameBits({call.loss}, {calls[0]->loss})) << "loss of rank " << rank << ": " << call.loss << ", of rank 0: " << calls[0]->loss;
  }
}

std::vector<double> LinearRanks::HiddenGradient() const {
  std::vector<double> sum(static_cast<std::size_t>(problem_.rows * problem_.width));
  for (const auto& call : calls) {
    const std::vector<double> part = call->grad_hidden.Values();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

std::vector<double> LinearRanks::HeadGradient(bool bias) const {
  const std::int64_t width = bias ? 1 : problem_.width;
  std::vector<double> whole(static_cast<std::size_t>(calls[0]->args.vocab_size * width));
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const std::vector<double> part = (bias ? calls[rank]->grad_bias : calls[rank]->grad_weight).Values();
    const auto real = static_cast<std::size_t>(shards_[rank].columns * width);
    std::copy_n(part.begin(), real, whole.begin() + shards_[rank].offset * width);
    for (std::size_t i = real; i < part.size() && !problem_.accumulate; ++i) EXPECT_EQ(part[i], 0) << "padding of rank " << rank;
  }
  return whole;
}

void LinearRanks::ExpectLikeOracle() const {
  ExpectOneOutcome();
  if (testing::Test::HasFatalFailure()) return;
  // Rows of the head that are padding belong to no shard here.
  LinearProblem real = problem_;
  real.columns = calls[0]->args.vocab_size;
  real.loss.vocab_size = 0;
  real.weight.resize(static_cast<std::size_t>(real.columns * real.width));
  if (!real.bias.empty()) real.bias.resize(static_cast<std::size_t>(real.columns));
  if (!real.grad_weight_before.empty()) real.grad_weight_before.resize(real.weight.size());
  if (!real.grad_bias_before.empty()) real.grad_bias_before.resize(real.bias.size());
  real.loss.wants_losses = real.loss.wants_log_z = real.loss.wants_loss = true;
  const LinearOracle oracle = JudgeLinear(real);
  LinearOutcome outcome;
  outcome.code = LG_OK;
  outcome.losses = calls[0]->losses;
  outcome.log_z = calls[0]->log_z;
  outcome.loss = calls[0]->loss;
  if (real.wants_grad_weight) outcome.grad_weight = HeadGradient(false);
  if (real.wants_grad_bias && !real.bias.empty()) outcome.grad_bias = HeadGradient(true);
  const bool hidden = std::exchange(real.wants_grad_hidden, false);
  ExpectLinearOutcome(real, outcome, oracle);
  if (!hidden) return;
  // Each rank has rounded its part.
  const std::vector<double> got = HiddenGradient();
  const int logits_dtype = real.logits_dtype == -1 ? DefaultLogitsType(real) : real.logits_dtype;
  const double rounding = real.dtype == LG_BF16 ? 0x1p-8 : real.dtype == LG_FP16 ? 0x1p-10 : 0x1p-22;
  const double of_logits = logits_dtype == LG_BF16 ? 0x1p-8 : logits_dtype == LG_FP16 ? 0x1p-10 : 4e-6;
  int complaints = 0;
  for (std::size_t i = 0; i < got.size() && complaints < 3; ++i) {
    const double right = oracle.grad_hidden[i];
    if (std::isnan(right)) {
      if (!std::isnan(got[i])) ++complaints, ADD_FAILURE() << "grad_hidden[" << i << "]: got " << got[i] << ", exact NaN";
      continue;
    }
    const double allowed = (rounding + of_logits) * oracle.hidden_terms[i] + static_cast<double>(calls.size()) * Ulp(real.dtype, 0);
    if (std::fabs(got[i] - right) <= allowed) continue;
    ++complaints;
    ADD_FAILURE() << "grad_hidden[" << i << "]: got " << got[i] << ", exact " << right << ", terms " << oracle.hidden_terms[i];
  }
}

}  // namespace lossgauge::test
