#include "tests/kernels/c_abi_backend.h"


#include <cmath>
#include <limits>

#include "tests/kernels/elements.h"
#include "tests/kernels/ring_telemetry.h"

namespace lossgauge::test {
namespace {

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

void SetOptions(const Problem& problem, lg_cross_entropy_args* args) {
  args->ignore_index = problem.ignore_index;
  args->label_smoothing = problem.label_smoothing;
  args->z_loss_weight = problem.z_loss_weight;
  args->logit_scale = problem.logit_scale;
  args->logit_softcap = problem.logit_softcap;
  args->reduction = problem.reduction;
  args->denominator = problem.denominator;
  args->upstream_stride = problem.upstream.size() > 1 ? 1 : 0;
  args->position_base = problem.position_base;
  args->threads = problem.threads;
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
  SetOptions(problem, &args);
  if (problem.denominator_by_pointer != 0) args.denominator_pointer = reinterpret_cast<const double*>(Place(denominator));
  if (problem.wants_losses) args.losses = reinterpret_cast<float*>(Place(losses));
  if (problem.wants_log_z) args.log_z = reinterpret_cast<float*>(Place(log_z));
  if (problem.wants_loss && problem.reduction != LG_NONE) args.loss = reinterpret_cast<float*>(Place(loss));
  if (problem.wants_grad) {
    args.grad_logits = problem.in_place ? Place(logits) : Place(grad);
    args.grad_row_stride = problem.in_place ? problem.row_stride : problem.grad_row_stride;
  }
  if (!problem.upstream.empty()) args.upstream = reinterpret_cast<const float*>(Place(upstream));
  if (problem.by_grad_scale_pointer) args.grad_scale = reinterpret_cast<const float*>(Place(grad_scale));
  args.gauge = problem.telemetry != nullptr ? problem.telemetry->gauge() : nullptr;
  args.block = problem.block;
  if (!problem.positions.empty()) args.positions = reinterpret_cast<const std::int64_t*>(Place(positions));

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
