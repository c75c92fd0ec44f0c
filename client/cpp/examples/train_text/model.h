// A neural language model after Bengio et al. (2003): the embeddings of the last C tokens side by side, one hidden layer, an LM head.
//
//   x = embedding[context]          [rows, C * D]
//   h = activation(x W + b)         [rows, H]
//   logits = h head                 [rows, columns], columns = V rounded up to 16: a padded head, as large models have
//
// The backward pass is written out. All parameters lie in one flat array, as optimiser, all-reduce and checkpoint want them.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_MODEL_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "client/cpp/examples/train_text/thread_pool.h"

namespace lossgauge::train_text {

enum class Activation { kGelu, kTanh };

struct ModelShape {
  std::int64_t vocab_size = 0;  // V
  std::int64_t context = 0;     // C, tokens
  std::int64_t embedding = 0;   // D
  std::int64_t hidden = 0;      // H
  Activation activation = Activation::kGelu;

  std::int64_t columns() const { return (vocab_size + 15) / 16 * 16; }
  std::int64_t inputs() const { return context * embedding; }
  // Where each tensor starts in the flat array.
  std::int64_t weight_offset() const { return vocab_size * embedding; }
  std::int64_t bias_offset() const { return weight_offset() + inputs() * hidden; }
  std::int64_t head_offset() const { return bias_offset() + hidden; }  // [H, columns]
  std::int64_t parameter_count() const { return head_offset() + hidden * columns(); }
  bool operator==(const ModelShape&) const = default;
};

class Model {
 public:
  Model(const ModelShape& shape, std::uint64_t seed);

  const ModelShape& shape() const { return shape_; }
  std::vector<float>& parameters() { return parameters_; }
  const std::vector<float>& parameters() const { return parameters_; }
  // d loss / d parameters, added to by Backward.
  std::vector<float>& gradients() { return gradients_; }
  void ZeroGradients();

  // context [rows, C] token ids. Returns logits [rows, columns], valid until the next Forward; the caller may overwrite them.
  float* Forward(ThreadPool& pool, std::span<const std::int32_t> context);
  // logit_gradients [rows, columns] of the last Forward.
  void Backward(ThreadPool& pool, std::span<const std::int32_t> context, const float* logit_gradients);

  // Forward in two parts: hidden() [rows, H], where a fault may be injected, and the logits of it.
  void ForwardHidden(ThreadPool& pool, std::span<const std::int32_t> context);
  std::vector<float>& hidden() { return hidden_; }
  float* ProjectToLogits(ThreadPool& pool);

  // For a loss that takes hidden() and the head instead of logits: the head as [columns, H], and Backward from the gradients of both.
  // `hidden_gradients` [rows, H] is overwritten.
  void TransposeHead(std::vector<float>* head) const;
  void AddTransposedToHeadGradients(const std::vector<float>& head_gradients);
  void BackwardFromHidden(ThreadPool& pool, std::span<const std::int32_t> context, std::vector<float>* hidden_gradients);

 private:
  ModelShape shape_;
  std::vector<float> parameters_, gradients_;
  std::int64_t rows_ = 0;
  std::vector<float> inputs_, slope_, hidden_, logits_;              // of the last Forward
  std::vector<float> transposed_, hidden_gradient_, input_gradient_;  // scratch of Backward
};

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_MODEL_H_
