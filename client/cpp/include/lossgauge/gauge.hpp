// C++17 over the C ABI of liblossgauge.so (lossgauge.h): handles that close themselves, options with strings, and loss calls
// with named arguments. Header only; nothing here adds behaviour of its own.
//
//   lossgauge::GaugeOptions options;
//   options.run = "gpt-small";
//   options.vocab_size = 50257;
//   lossgauge::Gauge gauge(options);              // always usable: gauge.status() says why telemetry is off, if it is
//   ...
//   lossgauge::CrossEntropy loss(logits, rows, columns, targets);
//   loss.args.grad_logits = logits;               // in place
//   loss.args.denominator = unmasked_tokens_of_the_step;
//   loss.Run(&gauge).OrThrow();
//   gauge.SetGradNorm(norm).IgnoreError();
//   gauge.Publish().IgnoreError();                // ends the step
//
// Errors: functions return a Status, which must be looked at (or waved through with IgnoreError). Who prefers exceptions calls
// OrThrow(). Nothing throws on its own but std::bad_alloc from strings. A telemetry fault never shows in the status of a loss call.
// Thread-safety: as in lossgauge.h, convention 8. A Gauge may be moved but not copied, and not moved while another thread uses it.
#ifndef LOSSGAUGE_GAUGE_HPP_
#define LOSSGAUGE_GAUGE_HPP_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lossgauge/lossgauge.h"

namespace lossgauge {
// An inline namespace, so that these names can live in one program beside the library's own internals.
inline namespace cpp_v1 {

// Outcome of a call: an lg_code and, on failure, the library's message.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(int code, std::string message) : code_(code), message_(std::move(message)) {}
  // Takes the message of the failure that just happened on this thread.
  static Status FromCode(int code) { return code == LG_OK ? Status() : Status(code, lg_last_error()); }

  bool ok() const { return code_ == LG_OK; }
  int code() const { return code_; }  // lg_code
  const std::string& message() const { return message_; }
  void IgnoreError() const {}
  void OrThrow() const {
    if (!ok()) throw std::runtime_error("lossgauge: " + message_ + " (code " + std::to_string(code_) + ")");
  }

 private:
  int code_ = LG_OK;
  std::string message_;
};

// lg_gauge_options with owned strings. Empty strings and vectors mean "not given": the library's default, see lossgauge.h.
struct GaugeOptions {
  std::string run;
  std::string attempt;
  std::string ring_dir;
  std::string group;
  std::int64_t attempt_start_wall_ns = 0;
  int rank = -1;
  int world_size = 0;
  lg_axis_option dp{0, 0}, tp{1, 0}, pp{1, 0}, cp{1, 0}, ep{1, 0};
  bool has_loss = true;
  lg_gradient_reduction gradient_reduction = LG_REDUCTION_OVER_RANKS_UNKNOWN;
  std::int64_t vocab_size = 0;     // V over all shards; 0 = not known
  std::int64_t shard_offset = 0;   // columns
  std::int64_t shard_columns = 0;  // 0 = vocab_size - shard_offset
  double label_smoothing = 0;
  double z_loss_weight = 0;
  std::vector<std::uint8_t> token_bytes;  // UTF-8 bytes of each token, vocab_size of them
  std::vector<std::string> block_names;   // at most 8
  std::int64_t first_step = 0;
};

// One rank's telemetry handle. A default-constructed one has no library handle: every call on it does nothing and returns OK, and
// loss calls with it run without telemetry (the same bits).
class Gauge {
 public:
  Gauge() = default;
  // Opens at once. When the ring cannot be made the gauge is still good for every call: see status().
  explicit Gauge(const GaugeOptions& options) { status_ = Open(options); }
  ~Gauge() { lg_gauge_close(handle_, nullptr); }
  Gauge(Gauge&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), status_(std::move(other.status_)) {}
  Gauge& operator=(Gauge&& other) noexcept {
    if (this != &other) {
      lg_gauge_close(handle_, nullptr);
      handle_ = std::exchange(other.handle_, nullptr);
      status_ = std::move(other.status_);
    }
    return *this;
  }
  Gauge(const Gauge&) = delete;
  Gauge& operator=(const Gauge&) = delete;

  // How opening went. Not OK: telemetry is off, and the message says why and what would help.
  const Status& status() const { return status_; }
  lg_gauge* handle() const { return handle_; }

  // The job's own global gradient norm, its learning rate, and what it divided by (tokens, > 0) of the step being built.
  Status SetGradNorm(double norm) { return SetScalar(LG_GRAD_NORM, norm); }
  Status SetLearningRate(double rate) { return SetScalar(LG_LEARNING_RATE, rate); }
  Status SetDenominator(double tokens) { return SetScalar(LG_DENOMINATOR, tokens); }
  // The loss that the job logs: nats per token, averaged over `interval` steps ending with this one, `auxiliary` nats of it declared
  // to be other terms. `dtype` is what it was kept in.
  Status SetReportedLoss(double value, lg_dtype dtype = LG_FP32, std::int64_t interval = 1, double auxiliary = 0) {
    if (!handle_) return {};
    lg_reported_loss reported;
    lg_reported_loss_init(&reported);
    reported.value = value;
    reported.dtype = dtype;
    reported.interval = interval;
    reported.auxiliary = auxiliary;
    return Status::FromCode(lg_gauge_set_reported_loss(handle_, &reported));
  }
  // For jobs with a loss of their own: nll_sum in nats over the finite rows, positions seen, unmasked ones, and what was divided by. `stream`: where a
  // gauge that counts on a device adds it.
  Status Observe(double nll_sum, std::int64_t tokens, std::int64_t unmasked_tokens, double denominator = 0, std::int64_t nonfinite_rows = 0,
                 void* stream = nullptr) {
    if (!handle_) return {};
    lg_observation seen;
    lg_observation_init(&seen);
    seen.nll_sum = nll_sum;
    seen.tokens = tokens;
    seen.unmasked_tokens = unmasked_tokens;
    seen.nonfinite_rows = nonfinite_rows;
    seen.denominator = denominator;
    seen.stream = stream;
    return Status::FromCode(lg_gauge_observe(handle_, &seen));
  }
  // Ends the step. Never waits.
  Status Publish(void* stream = nullptr) { return handle_ ? Status::FromCode(lg_gauge_publish(handle_, stream)) : Status(); }
  Status SetStep(std::int64_t step) { return handle_ ? Status::FromCode(lg_gauge_set_step(handle_, step)) : Status(); }

  // Events: shown with the run, and known to the verdict.
  Status Resume(std::int64_t step, const std::string& path = {}) {
    return handle_ ? Status::FromCode(lg_gauge_resume(handle_, step, path.empty() ? nullptr : path.c_str())) : Status();
  }
  Status CheckpointSaved(std::int64_t step, const std::string& path) {
    return handle_ ? Status::FromCode(lg_gauge_checkpoint_saved(handle_, step, path.c_str())) : Status();
  }
  Status Evaluation(std::int64_t step, double loss_nats, std::int64_t tokens) {
    return handle_ ? Status::FromCode(lg_gauge_evaluation(handle_, step, loss_nats, tokens)) : Status();
  }
  Status Note(std::int64_t step, const std::string& text) {
    return handle_ ? Status::FromCode(lg_gauge_note(handle_, step, text.c_str())) : Status();
  }

  // The clean end, with a reason for the record. The destructor closes without one.
  Status Close(const std::string& reason = {}) {
    lg_gauge* gauge = std::exchange(handle_, nullptr);
    return Status::FromCode(lg_gauge_close(gauge, reason.empty() ? nullptr : reason.c_str()));
  }
  // The job failed by its own judgement: the run is not shown as finished.
  Status Abandon(const std::string& reason) {
    lg_gauge* gauge = std::exchange(handle_, nullptr);
    return gauge ? Status::FromCode(lg_gauge_abandon(gauge, reason.c_str())) : Status();
  }

  // What the library says of itself. All zero without a handle.
  lg_gauge_state State() const {
    lg_gauge_state state{};
    state.struct_size = sizeof(state);
    if (handle_) lg_gauge_get_state(handle_, &state);
    return state;
  }

 private:
  Status SetScalar(int scalar, double value) {
    return handle_ ? Status::FromCode(lg_gauge_set_scalar(handle_, scalar, value)) : Status();
  }
  Status Open(const GaugeOptions& options);

  lg_gauge* handle_ = nullptr;
  Status status_;
};

// A phase for as long as the object lives. Loss calls in an evaluation or warm-up go to their own counters, not into the step.
class Phase {
 public:
  Phase(Gauge& gauge, lg_phase phase) : gauge_(&gauge), phase_(phase) {
    if (gauge.handle()) status_ = Status::FromCode(lg_gauge_phase_begin(gauge.handle(), phase));
  }
  ~Phase() {
    if (gauge_->handle() && status_.ok()) lg_gauge_phase_end(gauge_->handle(), phase_);
  }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
  // Not OK when the phase was open already; this guard then ends nothing.
  const Status& status() const { return status_; }

 private:
  Gauge* gauge_;
  lg_phase phase_;
  Status status_;
};

// Which dtype a C++ element type is. 16-bit floats have no type of their own here: set args.logits_dtype.
template <typename T>
constexpr lg_dtype DTypeOf() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::int64_t>,
                "logits: float; targets: int32_t or int64_t. For bf16 and fp16 set args.logits and args.logits_dtype");
  if constexpr (std::is_same_v<T, float>) return LG_FP32;
  if constexpr (std::is_same_v<T, std::int32_t>) return LG_INT32;
  return LG_INT64;
}

// One loss call: lg_cross_entropy_args with its defaults filled in, to be refined through `args`.
struct CrossEntropy {
  CrossEntropy() { lg_cross_entropy_args_init(&args); }
  // logits [rows, columns] contiguous, targets [rows].
  template <typename Target>
  CrossEntropy(const float* logits, std::int64_t rows, std::int64_t columns, const Target* targets) : CrossEntropy() {
    args.logits = logits;
    args.logits_dtype = LG_FP32;
    args.rows = rows;
    args.columns = columns;
    args.targets = targets;
    args.target_dtype = DTypeOf<Target>();
  }
  // Loss, gradient and signals, as far as their outputs are set. `gauge` may be null.
  Status Run(const Gauge* gauge = nullptr) {
    args.gauge = gauge ? gauge->handle() : nullptr;
    return Status::FromCode(lg_cross_entropy(&args));
  }
  // The gradient once more with a later args.upstream, from kept logits; adds nothing to the gauge.
  Status Backward() { return Status::FromCode(lg_cross_entropy_backward(&args)); }

  lg_cross_entropy_args args;
};

// Head and loss in one call: lg_linear_cross_entropy_args with its defaults filled in. logits = hidden weight^T (+ args.bias) are never held whole.
struct LinearCrossEntropy {
  LinearCrossEntropy() { lg_linear_cross_entropy_args_init(&args); }
  // hidden [rows, width] and weight [columns, width] contiguous, targets [rows]. Gradients go where args.grad_hidden, args.grad_weight and args.grad_bias
  // point; options of the loss are in args.loss.
  template <typename Target>
  LinearCrossEntropy(const float* hidden, std::int64_t rows, std::int64_t width, const float* weight, std::int64_t columns, const Target* targets)
      : LinearCrossEntropy() {
    args.hidden = hidden;
    args.dtype = LG_FP32;
    args.rows = rows;
    args.width = width;
    args.weight = weight;
    args.columns = columns;
    args.loss.targets = targets;
    args.loss.target_dtype = DTypeOf<Target>();
  }
  // `gauge` may be null.
  Status Run(const Gauge* gauge = nullptr) {
    args.loss.gauge = gauge ? gauge->handle() : nullptr;
    return Status::FromCode(lg_linear_cross_entropy(&args));
  }
  // The gradients with a later args.loss.upstream, from the logits formed once more; adds nothing to the gauge.
  Status Backward() { return Status::FromCode(lg_linear_cross_entropy_backward(&args)); }
  // What Run will take in memory.
  Status Plan(lg_linear_plan* plan) const {
    plan->struct_size = sizeof(*plan);
    return Status::FromCode(lg_linear_cross_entropy_plan(&args, plan));
  }

  lg_linear_cross_entropy_args args;
};

// The loss of one rank of a group whose ranks hold the columns of the logits: lg_vocab_parallel_args with its defaults filled in. Begin, all-gather the
// contributions in rank order, Finish.
struct VocabParallelCrossEntropy {
  VocabParallelCrossEntropy() { lg_vocab_parallel_args_init(&args); }
  // logits [rows, columns] contiguous: columns shard_offset, shard_offset + 1, ... of vocab_size. targets [rows], the same on all ranks. Options of the loss
  // are in args.loss; args.step and args.micro_batch tell one exchange from another.
  template <typename Target>
  VocabParallelCrossEntropy(const float* logits, std::int64_t rows, std::int64_t columns, const Target* targets, std::int64_t shard_offset,
                            std::int64_t vocab_size, int group_size, int group_index)
      : VocabParallelCrossEntropy() {
    args.group_size = group_size;
    args.group_index = group_index;
    args.vocab_size = vocab_size;
    args.shard_offset = shard_offset;
    args.loss.logits = logits;
    args.loss.logits_dtype = LG_FP32;
    args.loss.rows = rows;
    args.loss.columns = columns;
    args.loss.targets = targets;
    args.loss.target_dtype = DTypeOf<Target>();
  }
  // Of this rank's contribution, a multiple of 16. 0: args.loss.rows is out of range.
  std::int64_t ContributionBytes() const {
    std::int64_t bytes = 0;
    return lg_vocab_parallel_contribution_bytes(args.loss.rows, &bytes) == LG_OK ? bytes : 0;
  }
  // `contribution` and `gathered` (group_size contributions) are aligned to 16 bytes. `gauge` may be null.
  Status Begin(void* contribution, const Gauge* gauge = nullptr) {
    args.loss.gauge = gauge ? gauge->handle() : nullptr;
    return Status::FromCode(lg_vocab_parallel_begin(&args, contribution));
  }
  // LG_FAILED_PRECONDITION: the ranks contradict each other; the message names rank and argument.
  Status Finish(const void* gathered, const Gauge* gauge = nullptr) {
    args.loss.gauge = gauge ? gauge->handle() : nullptr;
    return Status::FromCode(lg_vocab_parallel_finish(&args, gathered));
  }

  lg_vocab_parallel_args args;
};

// Head and loss of one rank of a group whose ranks hold the rows of the head: lg_vocab_parallel_linear_args with its defaults filled in, over a
// LinearCrossEntropy of the rank's own rows, whose targets count in the whole vocabulary.
struct VocabParallelLinearCrossEntropy {
  VocabParallelLinearCrossEntropy() { lg_vocab_parallel_linear_args_init(&args); }
  // linear.args has the rank's shard; args.exchange and args.exchange_context, or args.communicator, are to be set. args.step and args.micro_batch tell one call
  // from another.
  VocabParallelLinearCrossEntropy(const LinearCrossEntropy& shard, std::int64_t shard_offset, std::int64_t vocab_size, int group_size, int group_index)
      : VocabParallelLinearCrossEntropy() {
    linear = shard;
    args.group_size = group_size;
    args.group_index = group_index;
    args.vocab_size = vocab_size;
    args.shard_offset = shard_offset;
  }
  // `gauge` may be null. Sum args.grad_hidden over the group afterwards, unless args.reduce_grad_hidden is set.
  Status Run(const Gauge* gauge = nullptr) {
    linear.args.loss.gauge = gauge ? gauge->handle() : nullptr;
    args.linear = &linear.args;
    return Status::FromCode(lg_vocab_parallel_linear_cross_entropy(&args));
  }
  // What Run will take in memory.
  Status Plan(lg_linear_plan* plan) {
    args.linear = &linear.args;
    plan->struct_size = sizeof(*plan);
    return Status::FromCode(lg_vocab_parallel_linear_plan(&args, plan));
  }

  LinearCrossEntropy linear;
  lg_vocab_parallel_linear_args args;
};

inline Status Gauge::Open(const GaugeOptions& options) {
  const auto text = [](const std::string& value) { return value.empty() ? nullptr : value.c_str(); };
  if (!options.token_bytes.empty() && static_cast<std::int64_t>(options.token_bytes.size()) != options.vocab_size) {
    // The C side cannot see the length, so it is checked here.
    return {LG_INVALID_ARGUMENT, "token_bytes: expected vocab_size = " + std::to_string(options.vocab_size) + " entries, got " +
                                     std::to_string(options.token_bytes.size())};
  }
  std::vector<const char*> names;
  for (const std::string& name : options.block_names) names.push_back(name.c_str());

  lg_gauge_options c;
  lg_gauge_options_init(&c);
  c.run = text(options.run);
  c.attempt = text(options.attempt);
  c.attempt_start_wall_ns = options.attempt_start_wall_ns;
  c.rank = options.rank;
  c.world_size = options.world_size;
  c.dp = options.dp;
  c.tp = options.tp;
  c.pp = options.pp;
  c.cp = options.cp;
  c.ep = options.ep;
  c.has_loss = options.has_loss;
  c.gradient_reduction = options.gradient_reduction;
  c.vocab_size = options.vocab_size;
  c.shard_offset = options.shard_offset;
  c.shard_columns = options.shard_columns;
  c.label_smoothing = options.label_smoothing;
  c.z_loss_weight = options.z_loss_weight;
  c.ring_dir = text(options.ring_dir);
  c.group = text(options.group);
  c.token_bytes = options.token_bytes.empty() ? nullptr : options.token_bytes.data();
  if (!names.empty()) {
    c.block_names = names.data();
    c.block_count = static_cast<std::int32_t>(names.size());
  }
  c.first_step = options.first_step;
  return Status::FromCode(lg_gauge_open(&c, &handle_));
}

}  // namespace cpp_v1
}  // namespace lossgauge

#endif  // LOSSGAUGE_GAUGE_HPP_
