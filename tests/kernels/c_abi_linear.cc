// Linear cross-entropy through the C ABI, on tensors between guard pages.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/kernels/c_abi_backend.h"
#include "tests/kernels/elements.h"
#include "tests/kernels/linear_backend.h"

namespace lossgauge::test {
namespace {

// [rows, columns] of `dtype` with a stride, between guard pages.
class Tensor {
 public:
  Tensor(int dtype, std::int64_t rows, std::int64_t columns, std::int64_t stride, bool left)
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(stride != 0 ? stride : columns),
        buffer_(rows == 0 ? 0 : static_cast<std::size_t>(((rows - 1) * stride_ + columns) * BytesOf(dtype)), left) {
    buffer_.FillWithNan();
  }
  void Fill(const std::vector<double>& values) {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < columns_; ++j) Store(dtype_, values[static_cast<std::size_t>(i * columns_ + j)], At(i) + j * BytesOf(dtype_));
    }
  }
  GuardedBuffer& buffer() { return buffer_; }

  void Read(std::vector<double>* values, std::vector<unsigned char>* bytes, bool* gaps_unharmed) const {
    const auto row_bytes = static_cast<std::size_t>(columns_ * BytesOf(dtype_));
    bytes->resize(row_bytes * static_cast<std::size_t>(rows_));
    for (std::int64_t i = 0; i < rows_; ++i) {
      std::memcpy(bytes->data() + static_cast<std::size_t>(i) * row_bytes, At(i), row_bytes);
      for (std::int64_t j = 0; j < columns_; ++j) values->push_back(Load(dtype_, At(i) + j * BytesOf(dtype_)));
      for (std::int64_t gap = columns_ * BytesOf(dtype_); i + 1 < rows_ && gap < stride_ * BytesOf(dtype_); ++gap) *gaps_unharmed &= At(i)[gap] == 0xff;
    }
  }

 private:
  unsigned char* At(std::int64_t row) const { return buffer_.data() + row * stride_ * BytesOf(dtype_); }

  const int dtype_;
  const std::int64_t rows_, columns_, stride_;
  GuardedBuffer buffer_;
};

template <class T>
void Copy(const std::vector<T>& values, GuardedBuffer* to) {
  if (!values.empty()) std::memcpy(to->data(), values.data(), to->bytes());
}

}  // namespace

LinearOutcome CAbiBackend::RunLinear(const LinearProblem& problem) {
  const Problem& part = problem.loss;
  const std::int64_t rows = problem.rows, width = problem.width, columns = problem.columns;
  const bool left = part.flush_left;
  Tensor hidden(problem.dtype, rows, width, problem.hidden_stride, left), weight(problem.dtype, columns, width, problem.weight_stride, left);
  Tensor bias(problem.dtype, problem.bias.empty() ? 0 : 1, columns, 0, left);
  hidden.Fill(problem.hidden);
  weight.Fill(problem.weight);
  if (!problem.bias.empty()) bias.Fill(problem.bias);
  Tensor grad_hidden(problem.dtype, rows, width, problem.grad_hidden_stride, left);
  Tensor grad_weight(problem.head_grad_dtype, columns, width, problem.grad_weight_stride, left);
  Tensor grad_bias(problem.head_grad_dtype, 1, columns, 0, left);
  if (!problem.grad_weight_before.empty()) grad_weight.Fill(problem.grad_weight_before);
  if (!problem.grad_bias_before.empty()) grad_bias.Fill(problem.grad_bias_before);

  const std::int64_t target_bytes = BytesOf(part.target_dtype);
  GuardedBuffer targets(rows == 0 ? 0 : static_cast<std::size_t>(((rows - 1) * part.target_stride + 1) * target_bytes), left);
  targets.FillWithNan();
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t wide = part.targets[static_cast<std::size_t>(i)];
    const auto narrow = static_cast<std::int32_t>(wide);
    std::memcpy(targets.data() + i * part.target_stride * target_bytes, target_bytes == 8 ? static_cast<const void*>(&wide) : &narrow,
                static_cast<std::size_t>(target_bytes));
  }
  const auto per_row = static_cast<std::size_t>(rows) * sizeof(float);
  GuardedBuffer losses(per_row, left), log_z(per_row, left), loss(sizeof(float), left);
  for (GuardedBuffer* output : {&losses, &log_z, &loss}) output->FillWithNan();
  GuardedBuffer upstream(part.upstream.size() * sizeof(float), left), positions(part.positions.size() * sizeof(std::int64_t), left);
  GuardedBuffer denominator(sizeof(double), left), grad_scale(sizeof(float), left);
  std::memcpy(denominator.data(), &part.denominator_by_pointer, sizeof(double));
  std::memcpy(grad_scale.data(), &part.grad_scale, sizeof(float));
  Copy(part.upstream, &upstream);
  Copy(part.positions, &positions);

  lg_linear_cross_entropy_args args;
  lg_linear_cross_entropy_args_init(&args);
  args.hidden = Place(hidden.buffer());
  args.dtype = problem.dtype;
  args.logits_dtype = problem.logits_dtype;
  args.rows = rows;
  args.width = width;
  args.hidden_stride = problem.hidden_stride;
  args.weight = Place(weight.buffer());
  args.columns = columns;
  args.weight_stride = problem.weight_stride;
  if (!problem.bias.empty()) args.bias = Place(bias.buffer());
  if (problem.wants_grad_hidden) args.grad_hidden = Place(grad_hidden.buffer());
  args.grad_hidden_stride = problem.grad_hidden_stride;
  if (problem.wants_grad_weight) args.grad_weight = Place(grad_weight.buffer());
  args.grad_weight_stride = problem.grad_weight_stride;
  if (problem.wants_grad_bias && !problem.bias.empty()) args.grad_bias = Place(grad_bias.buffer());
  args.head_grad_dtype = problem.head_grad_dtype;
  args.accumulate = problem.accumulate;
  args.chunk_rows = problem.chunk_rows;
  args.memory_budget = problem.memory_budget;
  args.head_grad_signal = problem.head_grad_signal;
  args.most_unmasked_rows = problem.most_unmasked_rows;
  args.loss.vocab_size = part.vocab_size;
  args.loss.targets = Place(targets);
  args.loss.target_dtype = part.target_dtype;
  args.loss.target_stride = part.target_stride;
  SetOptions(part, &args.loss);
  if (part.denominator_by_pointer != 0) args.loss.denominator_pointer = reinterpret_cast<const double*>(Place(denominator));
  if (part.wants_losses) args.loss.losses = reinterpret_cast<float*>(Place(losses));
  if (part.wants_log_z) args.loss.log_z = reinterpret_cast<float*>(Place(log_z));
  if (part.wants_loss && part.reduction != LG_NONE) args.loss.loss = reinterpret_cast<float*>(Place(loss));
  if (!part.upstream.empty()) args.loss.upstream = reinterpret_cast<const float*>(Place(upstream));
  if (part.by_grad_scale_pointer) args.loss.grad_scale = reinterpret_cast<const float*>(Place(grad_scale));
  args.loss.gauge = part.telemetry != nullptr ? part.telemetry->gauge() : nullptr;
  args.loss.block = part.block;
  if (!part.positions.empty()) args.loss.positions = reinterpret_cast<const std::int64_t*>(Place(positions));

  LinearOutcome outcome;
  outcome.plan.struct_size = sizeof outcome.plan;
  const int planned = lg_linear_cross_entropy_plan(&args, &outcome.plan);
  constexpr std::size_t kAligned = 256;
  const std::size_t workspace_bytes =
      problem.gives_workspace && planned == LG_OK ? (static_cast<std::size_t>(outcome.plan.workspace_bytes) + kAligned - 1) / kAligned * kAligned : 0;
  GuardedBuffer workspace(workspace_bytes);
  workspace.FillWithNan();  // what is read before it is written shows
  if (workspace_bytes != 0) {
    args.workspace = Place(workspace);
    args.workspace_bytes = outcome.plan.workspace_bytes;
  }
  for (GuardedBuffer* input : {&hidden.buffer(), &weight.buffer(), &bias.buffer(), &targets}) input->ForbidWrites();
  outcome.code = part.call == Problem::Call::kBackward ? lg_linear_cross_entropy_backward(&args) : lg_linear_cross_entropy(&args);
  if (outcome.code != LG_OK) outcome.message = lg_last_error();
  EXPECT_EQ(planned, outcome.code) << "the plan and the call disagree";
  Collect();

  outcome.losses.resize(static_cast<std::size_t>(rows));
  outcome.log_z.resize(static_cast<std::size_t>(rows));
  if (rows != 0) {
    std::memcpy(outcome.losses.data(), losses.data(), per_row);
    std::memcpy(outcome.log_z.data(), log_z.data(), per_row);
  }
  std::memcpy(&outcome.loss, loss.data(), sizeof outcome.loss);
  grad_hidden.Read(&outcome.grad_hidden, &outcome.grad_hidden_bytes, &outcome.gaps_unharmed);
  grad_weight.Read(&outcome.grad_weight, &outcome.grad_weight_bytes, &outcome.gaps_unharmed);
  grad_bias.Read(&outcome.grad_bias, &outcome.grad_bias_bytes, &outcome.gaps_unharmed);
  return outcome;
}

}  // namespace lossgauge::test
