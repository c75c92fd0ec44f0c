#include "client/cpp/examples/pipeline_8b/rank.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "client/cpp/examples/train_text/all_reduce.h"

namespace lossgauge::pipeline_8b {
namespace {

using Clock = std::chrono::steady_clock;

double MsSince(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  if (values.size() > 2) values.erase(values.begin());  // the first step makes what the others find
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Rank::Rank(const Options& options, int rank, SharedExchange* exchange, std::string attempt)
    : options_(options), rank_(rank), exchange_(exchange), attempt_(std::move(attempt)), faults_(MakeFaults(options)) {}

Rank::~Rank() {
  for (void* memory : taken_) place_->Free(memory);
}

void* Rank::Take(std::int64_t bytes) {
  taken_.push_back(place_->Allocate(bytes));
  report_.tensor_bytes += bytes;
  return taken_.back();
}

RankPart Rank::PartOf(std::int64_t step) const {
  const std::int64_t first = options_.vocab_size * rank_ / options_.ranks, last = options_.vocab_size * (rank_ + 1) / options_.ranks;
  RankPart part{options_.vocab_size, first, last - first, first, static_cast<std::uint64_t>(options_.seed), labels_.targets};
  if (faults_ != nullptr && step >= options_.fault_step) faults_->Spoil(step, rank_, &part);
  return part;
}

std::string Rank::OpenGauge(const RankPart& part) {
  if (options_.no_telemetry) return "";
  GaugeOptions options;
  options.run = options_.run;
  options.attempt = attempt_;
  options.rank = rank_;
  options.world_size = static_cast<std::int32_t>(options_.ranks);
  options.tp = {static_cast<std::int32_t>(options_.ranks), rank_};
  options.vocab_size = options_.vocab_size;
  options.shard_offset = std::min(part.shard_offset, options_.vocab_size - part.shard_columns);
  options.shard_columns = part.shard_columns;
  options.z_loss_weight = options_.z_loss;
  options.ring_dir = options_.ring_dir;
  gauge_ = std::make_unique<Gauge>(options);
  return gauge_->status().ok() ? "" : "no telemetry: " + gauge_->status().message();
}

std::string Rank::SetUp(const RankPart& part) {
  const std::int64_t tokens = options_.tokens(), width = options_.width;
  hidden_ = Take(tokens * width * 2);
  grad_hidden_ = Take(tokens * width * 2);
  head_ = Take(part.shard_columns * width * 2);
  grad_head_ = Take(part.shard_columns * width * 4);
  targets_ = Take(tokens * 8);
  true_targets_ = Take(tokens * 8);
  loss_ = Take(4);
  return OpenGauge(part);
}

int Rank::Exchange(void* context, const void* contribution, void* gathered, std::int64_t bytes, void*) {
  Rank& self = *static_cast<Rank*>(context);
  SpoilGathered spoil;
  if (self.faults_ != nullptr && self.faults_->spoils_exchange()) {
    spoil = [&self](unsigned char* received, std::int64_t size) {
      self.faults_->SpoilExchange(self.at_step_, self.at_chunk_, self.rank_, static_cast<int>(self.options_.ranks), size, received);
    };
  }
  self.exchange_error_ = self.place_->Gather(contribution, gathered, bytes, spoil);
  ++self.at_chunk_;
  return self.exchange_error_.empty() ? LG_OK : LG_UNAVAILABLE;
}

std::string Rank::Call(std::int64_t step, std::int64_t micro_batch, const RankPart& part, bool gradients, const Gauge* gauge) {
  LinearCrossEntropy shard;
  shard.args.hidden = hidden_;
  shard.args.dtype = LG_BF16;
  shard.args.rows = options_.tokens();
  shard.args.width = options_.width;
  shard.args.weight = head_;
  shard.args.columns = part.shard_columns;
  shard.args.chunk_rows = options_.chunk_rows;
  if (gradients) {
    shard.args.grad_hidden = grad_hidden_;
    shard.args.grad_weight = grad_head_;
  }
  lg_cross_entropy_args& loss = shard.args.loss;
  loss.targets = targets_;
  loss.target_dtype = LG_INT64;
  loss.z_loss_weight = options_.z_loss;
  loss.denominator = static_cast<double>(labels_.unmasked);
  loss.loss = static_cast<float*>(loss_);
  loss.stream = place_->stream();
  loss.threads = static_cast<std::int32_t>(options_.threads);
  VocabParallelLinearCrossEntropy call(shard, part.shard_offset, part.vocab_size, static_cast<int>(options_.ranks), rank_);
  call.args.step = step;
  call.args.micro_batch = micro_batch;
  const bool spoils = faults_ != nullptr && faults_->spoils_exchange();
  if (place_->communicator() != nullptr && !spoils) {
    call.args.communicator = place_->communicator();
    call.args.reduce_grad_hidden = gradients ? 1 : 0;
  } else {
    call.args.exchange = Exchange;
    call.args.exchange_context = this;
  }
  if (report_.workspace_bytes == 0) {
    lg_linear_plan plan{};
    if (const Status planned = call.Plan(&plan); !planned.ok()) return planned.message();
    report_.workspace_bytes = plan.workspace_bytes;
    report_.logits_bytes = plan.logits_bytes;
  }
  at_step_ = step;
  at_chunk_ = 0;
  const Status status = call.Run(gauge);
  if (status.ok()) return "";
  return exchange_error_.empty() ? status.message() : exchange_error_;
}

std::string Rank::Step(std::int64_t step) {
  labels_ = MakeLabels(options_, step);
  const RankPart part = PartOf(step);
  if (hidden_ == nullptr) {
    if (std::string error = SetUp(part); !error.empty()) return error;
  }
  if (part.first_row != loaded_first_ || part.head_seed != loaded_seed_) {
    place_->FillHead(head_, part.first_row, part.shard_columns, options_.width, part.head_seed);
    loaded_first_ = part.first_row;
    loaded_seed_ = part.head_seed;
  }
  const std::int64_t tokens = options_.tokens();
  place_->Write(targets_, part.targets.data(), tokens * 8);
  place_->Write(true_targets_, labels_.targets.data(), tokens * 8);
  const double lead = std::log(static_cast<double>(options_.vocab_size)) + 2.5;
  place_->FillHidden(hidden_, static_cast<const std::int64_t*>(true_targets_), tokens, options_.width, lead, static_cast<std::uint64_t>(1000 + step),
                     static_cast<std::uint64_t>(options_.seed));
  place_->Finish();
  if (std::string error = exchange_->group()->Barrier(rank_); !error.empty()) return error;

  const auto begin = Clock::now();
  if (std::string error = Call(step, 0, part, true, gauge_.get()); !error.empty()) return error;
  place_->Finish();
  call_ms_.push_back(MsSince(begin));
  const auto called = Clock::now();
  const bool reduced = place_->communicator() != nullptr && !(faults_ != nullptr && faults_->spoils_exchange());
  if (!reduced) {
    if (std::string error = place_->SumHidden(grad_hidden_, tokens * options_.width); !error.empty()) return error;
    place_->Finish();
  }
  reduce_ms_.push_back(MsSince(called));
  const auto summed = Clock::now();
  if (gauge_ != nullptr) {
    if (const Status published = gauge_->Publish(place_->stream()); !published.ok()) return published.message();
  }
  publish_ms_.push_back(MsSince(summed));
  place_->Finish();
  step_ms_.push_back(MsSince(begin));

  float loss = 0;
  place_->Read(&loss, loss_, 4);
  report_.loss = static_cast<double>(loss);
  if (rank_ == 0)
    std::printf("step %lld loss %.6f unmasked %lld of %lld\n", static_cast<long long>(step), report_.loss, static_cast<long long>(labels_.unmasked),
                static_cast<long long>(tokens));
  std::fflush(stdout);
  const auto rest = std::chrono::milliseconds(options_.step_ms) - (Clock::now() - begin);
  if (rest > Clock::duration::zero()) std::this_thread::sleep_for(rest);
  return "";
}

std::string Rank::Run() {
  std::string error;
  place_ = options_.cuda ? MakeCudaPlace(options_, rank_, exchange_, &error) : MakeHostPlace(rank_, exchange_);
  if (place_ == nullptr) return error;
  for (std::int64_t step = 0; step < options_.steps && error.empty(); ++step) error = Step(step);
  if (gauge_ != nullptr) {
    if (error.empty())
      gauge_->Close("done").IgnoreError();
    else
      lg_gauge_abandon(gauge_->handle(), error.c_str());
  }
  if (!error.empty()) {
    place_->Abandon();
    return error;
  }
  report_.peak_bytes = place_->PeakBytes();

  // Where a step goes: the same call without gradients, and its exchanges alone.
  const std::int64_t last = options_.steps - 1;
  const RankPart part = PartOf(last);
  std::vector<double> loss_only;
  for (int repeat = 0; repeat < 3; ++repeat) {
    if (error = exchange_->group()->Barrier(rank_); !error.empty()) return error;
    const auto begin = Clock::now();
    if (error = Call(last, 1 + repeat, part, false, nullptr); !error.empty()) return error;
    place_->Finish();
    loss_only.push_back(MsSince(begin));
  }
  report_.loss_only_ms = Median(loss_only);
  const std::int64_t chunks = (options_.tokens() + options_.chunk_rows - 1) / options_.chunk_rows;
  std::int64_t bytes = 0;
  lg_vocab_parallel_contribution_bytes(options_.chunk_rows, &bytes);
  if (error = exchange_->group()->Barrier(rank_); !error.empty()) return error;
  report_.exchange_ms = place_->TimeExchange(chunks, bytes);
  if (error = Compare(last); !error.empty()) return error;
  report_.step_ms = Median(step_ms_);
  report_.call_ms = Median(call_ms_);
  report_.reduce_ms = Median(reduce_ms_);
  report_.publish_ms = Median(publish_ms_);
  return Tell();
}

}  // namespace lossgauge::pipeline_8b
