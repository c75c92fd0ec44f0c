#include "client/cpp/examples/train_text/model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "client/cpp/examples/train_text/matmul.h"
#include "client/cpp/examples/train_text/random.h"

namespace lossgauge::train_text {
namespace {

constexpr std::int64_t kRowsPerPart = 128;

// exp to about 2 units in the last place, without branches so that the loops below vectorise. NaN stays NaN.
inline float VectorExp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float scaled = x * 1.44269504f;
  const float shifted = scaled + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer, which is then in the low bits
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - 0x4b400000u;
  const float f = (scaled - (shifted - 12582912.0f)) * 0.693147181f;
  const float p = 1 + f * (1 + f * (0.5f + f * (0.166666667f + f * (0.0416666667f + f * (0.00833333333f + f * 0.00138888889f)))));
  return std::bit_cast<float>((exponent + 127u) << 23) * p;
}

// value = activation(x), slope = its derivative there. GELU in its tanh form: x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
void Activate(Activation activation, const float* x, std::int64_t count, float* value, float* slope) {
  if (activation == Activation::kGelu) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float t = x[i];
      const float u2 = 1.595769122f * t * (1 + 0.044715f * t * t);
      const float s = 1 / (1 + VectorExp(-u2));
      value[i] = t * s;
      slope[i] = s + t * s * (1 - s) * 1.595769122f * (1 + 0.134145f * t * t);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      const float s = 1 / (1 + VectorExp(-2 * x[i]));
      value[i] = 2 * s - 1;
      slope[i] = 4 * s * (1 - s);
    }
  }
}

std::int64_t Parts(std::int64_t rows) { return (rows + kRowsPerPart - 1) / kRowsPerPart; }

}  // namespace

Model::Model(const ModelShape& shape, std::uint64_t seed) : shape_(shape) {
  parameters_.resize(static_cast<std::size_t>(shape.parameter_count()));
  gradients_.resize(parameters_.size());
  const auto fill = [&](std::int64_t first, std::int64_t last, double deviation) {
    for (std::int64_t i = first; i < last; ++i) {
      parameters_[static_cast<std::size_t>(i)] = static_cast<float>(deviation * RandomNormal(seed, 1, static_cast<std::uint64_t>(i)));
    }
  };
  fill(0, shape.weight_offset(), 1.0);
  fill(shape.weight_offset(), shape.bias_offset(), 1 / std::sqrt(static_cast<double>(shape.inputs())));
  // A small head: the first loss is then ln V, and nothing has to be unlearnt.
  const std::int64_t columns = shape.columns();
  for (std::int64_t h = 0; h < shape.hidden; ++h) {
    const std::int64_t row = shape.head_offset() + h * columns;
    fill(row, row + shape.vocab_size, 0.3 / std::sqrt(static_cast<double>(shape.hidden)));
  }
}

void Model::ZeroGradients() { std::fill(gradients_.begin(), gradients_.end(), 0.0f); }

float* Model::Forward(ThreadPool& pool, std::span<const std::int32_t> context) {
  ForwardHidden(pool, context);
  return ProjectToLogits(pool);
}

void Model::ForwardHidden(ThreadPool& pool, std::span<const std::int32_t> context) {
  rows_ = static_cast<std::int64_t>(context.size()) / shape_.context;
  const std::int64_t inputs = shape_.inputs(), hidden = shape_.hidden, width = shape_.embedding;
  inputs_.resize(static_cast<std::size_t>(rows_ * inputs));
  slope_.resize(static_cast<std::size_t>(rows_ * hidden));
  hidden_.resize(static_cast<std::size_t>(rows_ * hidden));

  pool.Run(Parts(rows_), [&](std::int64_t part) {
    const std::int64_t last = std::min(rows_, (part + 1) * kRowsPerPart);
    for (std::int64_t i = part * kRowsPerPart * shape_.context; i < last * shape_.context; ++i) {
      const float* from = parameters_.data() + context[static_cast<std::size_t>(i)] * width;
      std::memcpy(inputs_.data() + i * width, from, static_cast<std::size_t>(width) * sizeof(float));
    }
  });
  const float* bias = parameters_.data() + shape_.bias_offset();
  // slope_ holds the sums before the activation until Activate replaces them.
  for (std::int64_t i = 0; i < rows_; ++i) std::memcpy(slope_.data() + i * hidden, bias, static_cast<std::size_t>(hidden) * sizeof(float));
  Multiply(pool, {inputs_.data(), inputs, 1}, parameters_.data() + shape_.weight_offset(), slope_.data(), rows_, hidden, inputs, true);
  pool.Run(Parts(rows_), [&](std::int64_t part) {
    const std::int64_t first = part * kRowsPerPart * hidden, last = std::min(rows_, (part + 1) * kRowsPerPart) * hidden;
    Activate(shape_.activation, slope_.data() + first, last - first, hidden_.data() + first, slope_.data() + first);
  });
}

float* Model::ProjectToLogits(ThreadPool& pool) {
  logits_.resize(static_cast<std::size_t>(rows_ * shape_.columns()));
  Multiply(pool, {hidden_.data(), shape_.hidden, 1}, parameters_.data() + shape_.head_offset(), logits_.data(), rows_, shape_.columns(),
           shape_.hidden, false);
  return logits_.data();
}

void Model::Backward(ThreadPool& pool, std::span<const std::int32_t> context, const float* logit_gradients) {
  const std::int64_t hidden = shape_.hidden, columns = shape_.columns();
  hidden_gradient_.resize(hidden_.size());
  transposed_.resize(static_cast<std::size_t>(hidden * columns));

  // d head = h^T d logits;  d h = d logits head^T
  Multiply(pool, {hidden_.data(), 1, hidden}, logit_gradients, gradients_.data() + shape_.head_offset(), hidden, columns, rows_, true);
  Transpose(parameters_.data() + shape_.head_offset(), hidden, columns, transposed_.data());
  Multiply(pool, {logit_gradients, columns, 1}, transposed_.data(), hidden_gradient_.data(), rows_, hidden, columns, false);
  BackwardFromHidden(pool, context, &hidden_gradient_);
}

void Model::TransposeHead(std::vector<float>* head) const {
  head->resize(static_cast<std::size_t>(shape_.columns() * shape_.hidden));
  Transpose(parameters_.data() + shape_.head_offset(), shape_.hidden, shape_.columns(), head->data());
}

void Model::AddTransposedToHeadGradients(const std::vector<float>& head_gradients) {
  transposed_.resize(head_gradients.size());
  Transpose(head_gradients.data(), shape_.columns(), shape_.hidden, transposed_.data());
  float* to = gradients_.data() + shape_.head_offset();
  for (std::size_t i = 0; i < head_gradients.size(); ++i) to[i] += transposed_[i];
}

void Model::BackwardFromHidden(ThreadPool& pool, std::span<const std::int32_t> context, std::vector<float>* hidden_gradients) {
  const std::int64_t inputs = shape_.inputs(), hidden = shape_.hidden, width = shape_.embedding;
  std::vector<float>& gradients = *hidden_gradients;
  input_gradient_.resize(inputs_.size());
  transposed_.resize(static_cast<std::size_t>(inputs * hidden));

  pool.Run(Parts(rows_), [&](std::int64_t part) {
    const std::int64_t last = std::min(rows_, (part + 1) * kRowsPerPart) * hidden;
    for (std::int64_t i = part * kRowsPerPart * hidden; i < last; ++i) gradients[static_cast<std::size_t>(i)] *= slope_[static_cast<std::size_t>(i)];
  });
  float* bias_gradient = gradients_.data() + shape_.bias_offset();
  for (std::int64_t i = 0; i < rows_; ++i) {
    for (std::int64_t j = 0; j < hidden; ++j) bias_gradient[j] += gradients[static_cast<std::size_t>(i * hidden + j)];
  }

  // d W = x^T d s;  d x = d s W^T, scattered to the embeddings of the context in row order
  Multiply(pool, {inputs_.data(), 1, inputs}, gradients.data(), gradients_.data() + shape_.weight_offset(), inputs, hidden, rows_, true);
  Transpose(parameters_.data() + shape_.weight_offset(), inputs, hidden, transposed_.data());
  Multiply(pool, {gradients.data(), hidden, 1}, transposed_.data(), input_gradient_.data(), rows_, inputs, hidden, false);
  for (std::int64_t i = 0; i < rows_ * shape_.context; ++i) {
    float* to = gradients_.data() + context[static_cast<std::size_t>(i)] * width;
    const float* from = input_gradient_.data() + i * width;
    for (std::int64_t j = 0; j < width; ++j) to[j] += from[j];
  }
}

}  // namespace lossgauge::train_text
