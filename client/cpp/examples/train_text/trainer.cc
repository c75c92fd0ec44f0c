#include "client/cpp/examples/train_text/trainer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "client/cpp/examples/train_text/random.h"

namespace lossgauge::train_text {
namespace {

using Clock = std::chrono::steady_clock;

OptimizerOptions OptimizerOf(const Options& o) {
  OptimizerOptions options;
  options.learning_rate = o.learning_rate;
  options.warm_up_steps = o.warm_up_steps;
  options.decay_steps = o.decay_steps;
  options.weight_decay = o.weight_decay;
  return options;
}

FaultPlan FaultsOf(const Options& o, int rank) {
  const int victim = static_cast<int>(o.fault_rank >= 0 ? o.fault_rank : o.ranks - 1);
  const std::vector<PlannedFault> faults = {{FaultFromName(o.fault), o.fault_step, o.fault_steps}, {FaultFromName(o.then_fault), o.then_fault_step, 0}};
  return FaultPlan(faults, static_cast<std::uint64_t>(o.seed), rank, victim);
}

// Of one row's loss at its place. Added up mod 2^64, so how rows are dealt out to ranks and micro-batches does not show.
std::uint64_t LossBits(std::int64_t step, std::int64_t position, float loss) {
  return RandomBits(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(position), std::bit_cast<std::uint32_t>(loss));
}

}  // namespace

ModelShape ShapeOf(const Options& o, std::int64_t vocab_size) {
  return {vocab_size, o.context, o.embedding, o.hidden, o.activation == "tanh" ? Activation::kTanh : Activation::kGelu};
}

Trainer::Trainer(const Options& options, const TextCorpus& corpus, RankGroup* group, int rank, const Start& start, const std::atomic<bool>* stop)
    : options_(options),
      corpus_(corpus),
      group_(group),
      rank_(rank),
      start_(start),
      stop_(stop),
      batch_shape_{options.batch, options.length, options.context},
      faults_(FaultsOf(options, rank)),
      pool_(static_cast<int>(options.threads)),
      model_(ShapeOf(options, corpus.vocab_size), static_cast<std::uint64_t>(options.seed)),
      optimizer_(OptimizerOf(options), model_.parameters().size()) {}

std::string Trainer::Run() {
  std::string error = OpenGauge();
  if (error.empty()) error = Resume();
  if (error.empty() && rank_ == 0 && !options_.log_file.empty()) {
    log_file_.reset(std::fopen(options_.log_file.c_str(), "we"));
    if (!log_file_) error = "--log_file=" + options_.log_file + ": " + std::strerror(errno);
    if (log_file_) std::fputs("step\tloss\treported_loss\tz_loss\tmean_log_z\tunmasked\tgrad_norm\tlearning_rate\tupdated\n", log_file_.get());
  }
  bool stop = false;
  if (error.empty()) {
    LoadStep(first_step_);
    double counts[] = {static_cast<double>(UnmaskedOfThisRank())};
    error = group_->Sum(rank_, std::span<double>(counts));
    unmasked_now_ = counts[0];
  }
  for (std::int64_t step = first_step_; error.empty() && !stop && step < options_.steps; ++step) {
    const auto begin = Clock::now();
    error = TrainStep(step, &stop);
    if (!error.empty()) error = "step " + std::to_string(step) + ": " + error;
    if (error.empty() && options_.step_ms > 0) std::this_thread::sleep_until(begin + std::chrono::milliseconds(options_.step_ms));
  }
  if (error.empty() && options_.print_loss_bits) error = PrintBits();
  if (error.empty()) {
    gauge_.Close(stop ? "stopped by a signal" : "all steps done").IgnoreError();
  } else {
    gauge_.Abandon(error).IgnoreError();
  }
  return error;
}

std::string Trainer::OpenGauge() {
  if (options_.no_telemetry) return "";
  GaugeOptions options;
  options.run = options_.run;
  options.attempt = start_.attempt;
  options.attempt_start_wall_ns = start_.wall_ns;
  options.ring_dir = options_.ring_dir;
  options.rank = rank_;
  options.world_size = static_cast<int>(options_.ranks);
  options.gradient_reduction = options_.gradient_reduction == "mean" ? LG_REDUCTION_OVER_RANKS_MEAN : LG_REDUCTION_OVER_RANKS_SUM;
  options.vocab_size = corpus_.vocab_size;
  options.label_smoothing = options_.label_smoothing;
  options.z_loss_weight = options_.z_loss;
  options.token_bytes = corpus_.token_bytes;
  gauge_ = Gauge(options);
  if (gauge_.status().code() == LG_INVALID_ARGUMENT) return "gauge: " + gauge_.status().message();
  if (!gauge_.status().ok()) {
    std::fprintf(stderr, "train_text: rank %d: telemetry is off, training goes on: %s\n", rank_, gauge_.status().message().c_str());
  }
  return "";
}

std::string Trainer::Resume() {
  if (options_.resume.empty()) return "";
  std::vector<std::string> candidates = {options_.resume};
  if (options_.resume == "latest") candidates = ListCheckpoints(options_.checkpoint_dir);
  std::string last_error;
  for (const std::string& path : candidates) {
    Checkpoint checkpoint;
    last_error = LoadCheckpoint(path, &checkpoint);
    if (last_error.empty() && (checkpoint.shape != model_.shape() || checkpoint.parameters.size() != model_.parameters().size())) {
      last_error = "checkpoint " + path + ": made with other --vocab_size, --context, --embedding, --hidden or --activation";
    }
    if (!last_error.empty()) {
      if (rank_ == 0) std::fprintf(stderr, "train_text: %s\n", last_error.c_str());
      continue;
    }
    model_.parameters() = std::move(checkpoint.parameters);
    optimizer_.first_moment() = std::move(checkpoint.first_moment);
    optimizer_.second_moment() = std::move(checkpoint.second_moment);
    optimizer_.set_updates(checkpoint.updates);
    if (rank_ == 0) loss_bits_ = checkpoint.loss_bits;
    first_step_ = checkpoint.step + 1;
    gauge_.Resume(checkpoint.step, path).IgnoreError();
    if (rank_ == 0) std::printf("resumed after step %lld from %s\n", static_cast<long long>(checkpoint.step), path.c_str());
    return "";
  }
  if (candidates.empty() && rank_ == 0) std::printf("no checkpoint in %s: starting at step 0\n", options_.checkpoint_dir.c_str());
  return last_error;
}

void Trainer::LoadStep(std::int64_t step) {
  const std::int64_t sequences = options_.batch / (options_.ranks * options_.micro_batches);
  batches_.resize(static_cast<std::size_t>(options_.micro_batches));
  std::int64_t first = rank_ * options_.micro_batches * sequences;
  for (Batch& batch : batches_) {
    batch = MakeBatch(corpus_.train, batch_shape_, static_cast<std::uint64_t>(options_.seed), faults_.BatchStep(step), first, first + sequences);
    faults_.CorruptBatch(step, corpus_.vocab_size, batch_shape_, &batch);
    first += sequences;
  }
}

std::int64_t Trainer::UnmaskedOfThisRank() const {
  std::int64_t count = 0;
  for (const Batch& batch : batches_) count += batch.unmasked();
  return count;
}

std::string Trainer::TrainStep(std::int64_t step, bool* stop) {
  faults_.Signal(step);
  if (faults_.Active(Fault::kStopRank, step) && faults_.HitsThisRank()) return Hang();
  if (faults_.Begins(Fault::kEvalPause, step)) {
    const auto end = Clock::now() + std::chrono::seconds(options_.fault_seconds);
    while (Clock::now() < end) {
      if (std::string error = Evaluate(step, false); !error.empty()) return error;
    }
    if (std::string error = Evaluate(step, true); !error.empty()) return error;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(faults_.DelayMs(step)));
  faults_.CorruptModel(step, &model_);

  model_.ZeroGradients();
  StepSums sums;
  sums.unmasked = static_cast<double>(UnmaskedOfThisRank());
  for (const Batch& batch : batches_) {
    if (std::string error = MicroBatch(step, batch, &sums); !error.empty()) return error;
  }
  if (options_.linear_head) model_.AddTransposedToHeadGradients(head_gradients_);
  LoadStep(step + 1);
  sums.next_unmasked = static_cast<double>(UnmaskedOfThisRank());
  sums.stop = stop_->load() ? 1 : 0;

  const double own_loss = sums.Loss();
  double scalars[] = {sums.objective, sums.z_loss, sums.log_z, sums.unmasked, sums.next_unmasked, sums.stop};
  if (std::string error = group_->Sum(rank_, std::span<double>(scalars)); !error.empty()) return error;
  sums = {scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5]};
  if (std::string error = group_->Sum(rank_, std::span<float>(model_.gradients())); !error.empty()) return error;
  if (options_.gradient_reduction == "mean") Scale(model_.gradients(), 1 / static_cast<double>(options_.ranks));
  if (const double factor = faults_.GradientFactor(step); factor != 1) Scale(model_.gradients(), factor);

  const double grad_norm = Norm(model_.gradients());
  const double learning_rate = LearningRateAt(OptimizerOf(options_), step) * faults_.LearningRateFactor(step);
  // A gradient that is not finite would spoil weights and moments for good: such a step is skipped, as mixed-precision trainers do.
  const bool update = std::isfinite(grad_norm);
  if (update) {
    if (options_.clip_norm > 0 && grad_norm > options_.clip_norm && !faults_.ClippingOff(step)) Scale(model_.gradients(), options_.clip_norm / grad_norm);
    optimizer_.Update(learning_rate, model_.gradients(), model_.parameters());
  }

  // The loss as the job logs it, smoothing and z-loss included.
  const double reported = faults_.Active(Fault::kLocalReport, step) ? own_loss : sums.Loss();
  gauge_.SetGradNorm(grad_norm).IgnoreError();
  gauge_.SetLearningRate(learning_rate).IgnoreError();
  gauge_.SetReportedLoss(reported).IgnoreError();
  if (!faults_.Mute(step)) gauge_.Publish().IgnoreError();

  if (rank_ == 0) Log(step, sums, reported, grad_norm, learning_rate, update);
  unmasked_now_ = sums.next_unmasked;
  *stop = sums.stop > 0;
  const auto due = [&](std::int64_t every) { return every > 0 && (step + 1) % every == 0; };
  if (due(options_.checkpoint_every)) {
    if (std::string error = SaveCheckpoint(step); !error.empty()) return error;
  }
  if (due(options_.eval_every)) return Evaluate(step, true);
  return "";
}

std::string Trainer::MicroBatch(std::int64_t step, const Batch& batch, StepSums* sums) {
  const std::int64_t rows = batch.rows();
  losses_.resize(static_cast<std::size_t>(rows));
  log_z_.resize(static_cast<std::size_t>(rows));
  model_.ForwardHidden(pool_, batch.context);
  faults_.CorruptHidden(step, model_.shape(), batch, &model_.hidden());

  CrossEntropy loss(nullptr, rows, model_.shape().columns(), batch.targets.data());
  loss.args.vocab_size = model_.shape().vocab_size;
  loss.args.ignore_index = kIgnoreIndex;
  loss.args.label_smoothing = options_.label_smoothing;
  loss.args.z_loss_weight = options_.z_loss;
  loss.args.losses = losses_.data();
  loss.args.log_z = log_z_.data();
  loss.args.position_base = batch.first_position;
  loss.args.threads = static_cast<std::int32_t>(options_.threads);

  // Gradients of ranks are averaged or summed later; the denominator must fit that.
  const double averaged_ranks = options_.gradient_reduction == "mean" ? static_cast<double>(options_.ranks) : 1;
  const float share = static_cast<float>(1 / (static_cast<double>(options_.ranks * options_.micro_batches) / averaged_ranks));
  if (faults_.Active(Fault::kMeanOfMeans, step)) {
    // The well-known mistake: the mean of each micro-batch (denominator 0 = its own count), averaged over micro-batches and ranks.
    loss.args.upstream = &share;
  } else if (faults_.Active(Fault::kWrongDenominator, step)) {
    loss.args.denominator = static_cast<double>(options_.batch * options_.length) / averaged_ranks;
  } else {
    loss.args.denominator = std::max(1.0, unmasked_now_) / averaged_ranks;
  }
  if (std::string error = RunLoss(step, loss.args, batch, true); !error.empty()) return error;

  for (std::int64_t i = 0; i < rows; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (batch.targets[at] == kIgnoreIndex) continue;
    sums->objective += losses_[at];
    sums->z_loss += options_.z_loss * log_z_[at] * log_z_[at];
    sums->log_z += log_z_[at];
    loss_bits_ += LossBits(step, batch.first_position + i, losses_[at]);
  }
  return "";
}

std::string Trainer::RunLoss(std::int64_t step, const lg_cross_entropy_args& loss, const Batch& batch, bool trains) {
  const ModelShape& shape = model_.shape();
  if (!options_.linear_head) {
    float* logits = model_.ProjectToLogits(pool_);
    CrossEntropy call;
    call.args = loss;
    call.args.logits = logits;
    if (trains) call.args.grad_logits = logits;  // in place
    const bool flips = trains && faults_.Active(Fault::kZLossSign, step);
    const std::vector<float> kept(logits, logits + (flips ? batch.rows() * shape.columns() : 0));
    if (const Status status = call.Run(&gauge_); !status.ok()) return "cross-entropy: " + status.message();
    if (flips) SubtractZLossGradient(loss, kept, shape.columns(), logits);
    if (trains) model_.Backward(pool_, batch.context, logits);
    return "";
  }
  model_.TransposeHead(&head_);
  LinearCrossEntropy call(model_.hidden().data(), batch.rows(), shape.hidden, head_.data(), shape.columns(), batch.targets.data());
  call.args.loss = loss;
  if (trains) {
    hidden_gradients_.resize(model_.hidden().size());
    head_gradients_.resize(head_.size());
    call.args.grad_hidden = hidden_gradients_.data();
    call.args.grad_weight = head_gradients_.data();
    call.args.accumulate = &batch != &batches_.front();  // over the micro-batches of a step
  }
  if (const Status status = call.Run(&gauge_); !status.ok()) return "linear cross-entropy: " + status.message();
  if (trains) model_.BackwardFromHidden(pool_, batch.context, &hidden_gradients_);
  return "";
}

std::string Trainer::Evaluate(std::int64_t step, bool report) {
  const Phase phase(gauge_, LG_EVALUATION);
  const Batch batch = MakeHeldOutBatch(corpus_.held_out, batch_shape_, rank_, options_.ranks, options_.eval_sequences);
  double sums[2] = {};  // nats, tokens
  if (batch.rows() > 0) {
    std::vector<float> losses(static_cast<std::size_t>(batch.rows()));
    model_.ForwardHidden(pool_, batch.context);
    CrossEntropy loss(nullptr, batch.rows(), model_.shape().columns(), batch.targets.data());
    loss.args.vocab_size = model_.shape().vocab_size;
    loss.args.ignore_index = kIgnoreIndex;
    loss.args.losses = losses.data();
    loss.args.position_base = batch.first_position;
    loss.args.threads = static_cast<std::int32_t>(options_.threads);
    if (std::string error = RunLoss(step, loss.args, batch, false); !error.empty()) return "evaluation: " + error;
    for (std::size_t i = 0; i < losses.size(); ++i) sums[0] += batch.targets[i] == kIgnoreIndex ? 0 : losses[i];
    sums[1] = static_cast<double>(batch.unmasked());
  }
  if (!report) return "";
  if (std::string error = group_->Sum(rank_, std::span<double>(sums)); !error.empty()) return error;
  if (rank_ == 0 && sums[1] > 0) {
    const double nats = sums[0] / sums[1];
    gauge_.Evaluation(step, nats, static_cast<std::int64_t>(sums[1])).IgnoreError();
    std::printf("step %6lld  held-out loss %.4f nats/token  perplexity %.3f\n", static_cast<long long>(step), nats, std::exp(nats));
    std::fflush(stdout);
  }
  return "";
}

std::string Trainer::SaveCheckpoint(std::int64_t step) {
  std::uint64_t bits[] = {loss_bits_};
  if (std::string error = group_->Sum(rank_, std::span<std::uint64_t>(bits)); !error.empty()) return error;
  if (rank_ != 0) return "";
  const Phase phase(gauge_, LG_CHECKPOINT);
  Checkpoint checkpoint{model_.shape(),        static_cast<std::uint64_t>(options_.seed), step, optimizer_.updates(), bits[0], model_.parameters(),
                        optimizer_.first_moment(), optimizer_.second_moment()};
  const std::string path = CheckpointPath(options_.checkpoint_dir, step);
  std::string error = train_text::SaveCheckpoint(path, checkpoint);
  if (error.empty()) gauge_.CheckpointSaved(step, path).IgnoreError();
  return error;
}

// Stuck, as in a deadlocked data loader: alive, beating, and never in the next step. Ends when the job is told to.
std::string Trainer::Hang() {
  std::fprintf(stderr, "train_text: rank %d: hangs on purpose\n", rank_);
  const auto end = Clock::now() + std::chrono::seconds(options_.barrier_timeout_s);
  while (!stop_->load() && (options_.ranks > 1 || Clock::now() < end)) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return "was stuck";
}

void Trainer::Log(std::int64_t step, const StepSums& sums, double reported, double grad_norm, double learning_rate, bool updated) {
  const double count = std::max(1.0, sums.unmasked), loss = sums.Loss();
  if (log_file_) {
    std::fprintf(log_file_.get(), "%lld\t%.9g\t%.9g\t%.9g\t%.9g\t%.0f\t%.9g\t%.9g\t%d\n", static_cast<long long>(step), loss, reported,
                 sums.z_loss / count, sums.log_z / count, sums.unmasked, grad_norm, learning_rate, updated ? 1 : 0);
    std::fflush(log_file_.get());
  }
  skipped_ += updated ? 0 : 1;
  // Once at first, then ever more rarely.
  if (!updated && (skipped_ & (skipped_ - 1)) == 0) {
    std::fprintf(stderr, "train_text: step %lld: gradient norm %g: update skipped, number %lld\n", static_cast<long long>(step), grad_norm,
                 static_cast<long long>(skipped_));
  }
  if (options_.log_every > 0 && (step % options_.log_every == 0 || step + 1 == options_.steps)) {
    std::printf("step %6lld  loss %.4f nats/token  (z-loss %.4f)  grad norm %.4f  learning rate %.3g  tokens %.0f\n", static_cast<long long>(step), loss,
                sums.z_loss / count, grad_norm, learning_rate, sums.unmasked);
    std::fflush(stdout);
  }
}

std::string Trainer::PrintBits() {
  std::uint64_t bits[] = {loss_bits_};
  if (std::string error = group_->Sum(rank_, std::span<std::uint64_t>(bits)); !error.empty()) return error;
  if (rank_ != 0) return "";
  std::uint64_t weights = 0;
  for (const float weight : model_.parameters()) weights = MixBits(weights ^ std::bit_cast<std::uint32_t>(weight));
  std::printf("loss_bits %016llx\nweight_bits %016llx\n", static_cast<unsigned long long>(bits[0]), static_cast<unsigned long long>(weights));
  std::fflush(stdout);
  return "";
}

}  // namespace lossgauge::train_text
