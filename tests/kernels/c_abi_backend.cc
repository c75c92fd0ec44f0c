#include "tests/kernels/c_abi_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "proto/lossgauge/ring/ring_reader.h"
#include "tests/kernels/elements.h"

namespace lossgauge::test {
namespace {

class RingTelemetry : public Telemetry {
 public:
  RingTelemetry(const TelemetryOptions& wanted, std::function<void()> finish) : finish_(std::move(finish)) {
    static std::atomic<int> count{0};
    const std::string name = std::to_string(getpid()) + "-" + std::to_string(count++);
    directory_ = std::filesystem::temp_directory_path() / ("lossgauge-kernels-test-" + name);
    const std::string run = "kernels-test-" + name;
    lg_gauge_options options;
    lg_gauge_options_init(&options);
    options.run = run.c_str();
    options.attempt = "1";
    options.rank = 0;
    options.world_size = 1;
    options.vocab_size = wanted.vocab_size;
    const std::string directory = directory_.string();
    options.ring_dir = directory.c_str();
    options.token_bytes = wanted.token_bytes.empty() ? nullptr : wanted.token_bytes.data();
    EXPECT_EQ(lg_gauge_open(&options, &gauge_), LG_OK) << lg_last_error();
    lg_gauge_state state{};
    state.struct_size = sizeof state;
    EXPECT_EQ(lg_gauge_get_state(gauge_, &state), LG_OK) << lg_last_error();
    const int file = open(state.steps_path, O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) {
      ADD_FAILURE() << "no ring at " << state.steps_path;
      return;
    }
    bytes_ = static_cast<std::size_t>(status.st_size);
    mapped_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    lg_ring_identity identity;
    EXPECT_EQ(ring::ReadHeader(mapped_, bytes_, &identity), ring::HeaderState::kValid);
    reader_ = std::make_unique<ring::RingReader<lg_step_record>>(mapped_, identity);
  }
  ~RingTelemetry() override {
    lg_gauge_close(gauge_, "test over");
    if (mapped_ != nullptr) munmap(mapped_, bytes_);
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  lg_gauge* gauge() override { return gauge_; }
  lg_step_record Publish() override {
    lg_step_record main{};
    EXPECT_EQ(lg_gauge_publish(gauge_, nullptr), LG_OK) << lg_last_error();
    finish_();
    if (reader_ == nullptr) return main;
    lg_step_record record;
    bool found = false;
    for (;;) {
      const ring::ReadResult result = reader_->Next(&record);
      if (result.fate == ring::ReadFate::kEmpty) break;
      if (result.fate != ring::ReadFate::kRecord) {
        ADD_FAILURE() << "the ring is not readable";
        break;
      }
      if (record.block == 0) main = record, found = true;
    }
    EXPECT_TRUE(found) << "publish wrote no record of block 0";
    return main;
  }

 private:
  std::function<void()> finish_;
  std::filesystem::path directory_;
  lg_gauge* gauge_ = nullptr;
  void* mapped_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<ring::RingReader<lg_step_record>> reader_;
};

std::size_t SpanBytes(std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t bytes) {
  return rows == 0 ? 0 : static_cast<std::size_t>(((rows - 1) * stride + columns) * bytes);
}

std::vector<unsigned char> Packed(const GuardedBuffer& from, const Problem& problem, std::int64_t stride) {
  const auto row_bytes = static_cast<std::size_t>(problem.columns * BytesOf(problem.dtype));
  std::vector<unsigned char> packed(row_bytes * static_cast<std::size_t>(problem.rows));
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    std::memcpy(packed.data() + static_cast<std::size_t>(i) * row_bytes, from.data() + i * stride * BytesOf(problem.dtype),
                row_bytes);
  }
  return packed;
}

bool GapsAreOnes(const GuardedBuffer& buffer, const Problem& problem, std::int64_t stride) {
  const std::int64_t bytes = BytesOf(problem.dtype);
  for (std::int64_t i = 0; i + 1 < problem.rows; ++i) {
    for (std::int64_t at = (i * stride + problem.columns) * bytes; at < (i + 1) * stride * bytes; ++at) {
      if (buffer.data()[at] != 0xff) return false;
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<Telemetry> CAbiBackend::OpenTelemetry(const TelemetryOptions& options) {
  return std::make_unique<RingTelemetry>(options, [this] { Finish(); });
}

int CAbiBackend::Call(const Problem& problem, const lg_cross_entropy_args& args) {
  switch (problem.call) {
    case Problem::Call::kForward:
      return lg_cross_entropy(&args);
    case Problem::Call::kBackward:
      return lg_cross_entropy_backward(&args);
    case Problem::Call::kObserve:
      return lg_observe_logits(&args);
  }
  return -1;
}

Outcome CAbiBackend::Run(const Problem& problem) {
  const std::int64_t rows = problem.rows, columns = problem.columns, bytes = BytesOf(problem.dtype);
  const std::int64_t stride = problem.row_stride != 0 ? problem.row_stride : columns;
  const std::int64_t grad_stride = problem.in_place               ? stride
                                   : problem.grad_row_stride != 0 ? problem.grad_row_stride
                                                                  : columns;
  const std::int64_t target_bytes = BytesOf(problem.target_dtype);
  const auto shift = static_cast<std::size_t>(problem.shift_bytes);
  const bool left = problem.flush_left;

  GuardedBuffer logits(SpanBytes(rows, columns, stride, bytes), left, shift);
  logits.FillWithNan();
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      Store(problem.dtype, problem.logits[static_cast<std::size_t>(i * columns + j)],
            logits.data() + (i * stride + j) * bytes);
    }
  }
  GuardedBuffer targets(SpanBytes(rows, 1, problem.target_stride, target_bytes), left, shift / 2 * 4);
  targets.FillWithNan();
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t wide = problem.targets[static_cast<std::size_t>(i)];
    const auto narrow = static_cast<std::int32_t>(wide);
    std::memcpy(targets.data() + i * problem.target_stride * target_bytes,
                target_bytes == 8 ? static_cast<const void*>(&wide) : &narrow, static_cast<std::size_t>(target_bytes));
  }
  const auto per_row = static_cast<std::size_t>(rows) * sizeof(float);
  GuardedBuffer losses(per_row, left), log_z(per_row, left), loss(sizeof(float), left);
  GuardedBuffer grad(problem.in_place ? 0 : SpanBytes(rows, columns, grad_stride, bytes), left, shift);
  GuardedBuffer upstream(problem.upstream.size() * sizeof(float), left);
  GuardedBuffer positions(problem.positions.size() * sizeof(std::int64_t), left);
  GuardedBuffer denominator(sizeof(double), left), grad_scale(sizeof(float), left);
  std::memcpy(denominator.data(), &problem.denominator_by_pointer, sizeof(double));
  std::memcpy(grad_scale.data(), &problem.grad_scale, sizeof(float));
  for (GuardedBuffer* output : {&losses, &log_z, &loss, &grad}) output->FillWithNan();
  if (!problem.upstream.empty()) std::memcpy(upstream.data(), problem.upstream.data(), upstream.bytes());
  if (!problem.positions.empty()) std::memcpy(positions.data(), problem.positions.data(), positions.bytes());

  lg_cross_entropy_args args;
  lg_cross_entropy_args_init(&args);
  args.logits = Place(logits);
  args.logits_dtype = problem.dtype;
  args.rows = rows;
  args.columns = columns;
  args.row_stride = problem.row_stride;
  args.vocab_size = problem.vocab_size;
  args.targets = Place(targets);
  args.target_dtype = problem.target_dtype;
  args.target_stride = problem.target_stride;
  args.ignore_index = problem.ignore_index;
  args.label_smoothing = problem.label_smoothing;
  args.z_loss_weight = problem.z_loss_weight;
  args.logit_scale = problem.logit_scale;
  args.logit_softcap = problem.logit_softcap;
  args.reduction = problem.reduction;
  args.denominator = problem.denominator;
  if (problem.denominator_by_pointer != 0) args.denominator_pointer = reinterpret_cast<const double*>(Place(denominator));
  if (problem.wants_losses) args.losses = reinterpret_cast<float*>(Place(losses));
  if (problem.wants_log_z) args.log_z = reinterpret_cast<float*>(Place(log_z));
  if (problem.wants_loss && problem.reduction != LG_NONE) args.loss = reinterpret_cast<float*>(Place(loss));
  if (problem.wants_grad) {
    args.grad_logits = problem.in_place ? Place(logits) : Place(grad);
    args.grad_row_stride = problem.in_place ? problem.row_stride : problem.grad_row_stride;
  }
  if (!problem.upstream.empty()) args.upstream = reinterpret_cast<const float*>(Place(upstream));
  args.upstream_stride = problem.upstream.size() > 1 ? 1 : 0;
  if (problem.by_grad_scale_pointer) args.grad_scale = reinterpret_cast<const float*>(Place(grad_scale));
  args.gauge = problem.telemetry != nullptr ? problem.telemetry->gauge() : nullptr;
  args.block = problem.block;
  args.position_base = problem.position_base;
  if (!problem.positions.empty()) args.positions = reinterpret_cast<const std::int64_t*>(Place(positions));
  args.threads = problem.threads;

  Outcome outcome;
  outcome.logits_bytes_before = Packed(logits, problem, stride);
  if (problem.in_place == false) logits.ForbidWrites();
  targets.ForbidWrites();
  if (problem.call == Problem::Call::kObserve) {
    args.losses = args.log_z = args.loss = nullptr;
    args.grad_logits = nullptr;
  }
  outcome.code = Call(problem, args);
  if (outcome.code != LG_OK) outcome.message = lg_last_error();
  Collect();

  outcome.logits_bytes = Packed(logits, problem, stride);
  outcome.losses.resize(static_cast<std::size_t>(rows));
  outcome.log_z.resize(static_cast<std::size_t>(rows));
  if (rows != 0) {
    std::memcpy(outcome.losses.data(), losses.data(), per_row);
    std::memcpy(outcome.log_z.data(), log_z.data(), per_row);
  }
  std::memcpy(&outcome.loss, loss.data(), sizeof outcome.loss);
  const GuardedBuffer& emitted = problem.in_place ? logits : grad;
  outcome.grad_bytes = Packed(emitted, problem, grad_stride);
  for (std::size_t at = 0; at < outcome.grad_bytes.size(); at += static_cast<std::size_t>(bytes)) {
    outcome.grad.push_back(Load(problem.dtype, outcome.grad_bytes.data() + at));
  }
  outcome.gaps_unharmed = GapsAreOnes(emitted, problem, grad_stride);
  return outcome;
}


}  // namespace lossgauge::test
