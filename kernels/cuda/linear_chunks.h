// A call of linear cross-entropy cut into chunks: where things lie in its workspace, and each chunk's rows, loss launch and products. Enqueues nothing.
#ifndef LOSSGAUGE_KERNELS_CUDA_LINEAR_CHUNKS_H_
#define LOSSGAUGE_KERNELS_CUDA_LINEAR_CHUNKS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_head.h"
#include "kernels/cuda/linear_rows.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/shard_launch.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/linear_plan.h"
#include "kernels/host/tensor_span.h"
#include "kernels/host/vocab_parallel_arguments.h"

namespace lossgauge::cuda {

inline constexpr std::int64_t kAlignment = 256;
// Rows of logits begin at whole lines.
inline constexpr std::int64_t kLogitsAlignment = 128;
// Rows of a chunk are rounded up to this, as long as the chunk holds them: products with few odd rows at the end are slow.
inline constexpr std::int64_t kRowGranule = 64;

inline std::int64_t LogitsRow(std::int64_t columns, int dtype) { return RoundUp(columns * BytesOfType(dtype), kLogitsAlignment); }  // bytes
inline std::int64_t LogitsStride(const lg_linear_cross_entropy_args& a) { return LogitsRow(a.loss.vocab_size, a.dtype) / BytesOfType(a.dtype); }
inline std::int64_t MostUnmasked(const lg_linear_cross_entropy_args& a) { return a.most_unmasked_rows >= 0 ? std::min(a.rows, a.most_unmasked_rows) : a.rows; }

// What has the alignment of `like`, by which algorithms are chosen, in memory that begins at a multiple of kAlignment and is longer by it.
inline void* AlignedLike(const void* like, void* memory) {
  return static_cast<unsigned char*>(memory) + reinterpret_cast<std::uintptr_t>(like) % static_cast<std::uintptr_t>(kAlignment);
}

inline bool RoundsHead(const lg_linear_cross_entropy_args& a) { return a.head_grad_dtype != LG_FP32; }
// grad_weight is summed in memory of ours and rounded at the end. With one chunk the product itself rounds, unless its squares are wanted.
inline bool SumsHeadApart(const lg_linear_cross_entropy_args& a, std::int64_t chunks) {
  return a.grad_weight != nullptr && RoundsHead(a) && (chunks > 1 || a.head_grad_signal != 0);
}
inline bool HasHeadSquares(const lg_linear_cross_entropy_args& a, std::int64_t chunks) {
  const bool one_factor = a.loss.upstream == nullptr || a.loss.upstream_stride == 0;
  return a.grad_weight != nullptr && one_factor && (a.head_grad_signal != 0 || SumsHeadApart(a, chunks));
}

// grad_hidden is not a part of a sum over ranks.
inline bool OwnsHiddenGradient(const LinearCall& call) { return call.sharded == nullptr || call.sharded->shard.group_size == 1; }

// Where things lie in the workspace.
struct Layout {
  std::int64_t logits, hidden, products, head, bias, row_of, slot_of, positions, targets, upstream, losses, log_z, taken, gathered;

  Layout(const lg_linear_cross_entropy_args& a, std::int64_t chunk_rows, std::int64_t chunks, int ranks) {
    std::int64_t at = 0;
    const auto take = [&at](std::int64_t size) {
      const std::int64_t here = at;
      at += RoundUp(size, kAlignment);
      return here;
    };
    logits = take(chunk_rows * LogitsStride(a) * BytesOfType(a.dtype));
    hidden = take(chunk_rows * a.width * BytesOfType(a.dtype));
    products = take(static_cast<std::int64_t>(kProductWorkspaceBytes));
    head = take(SumsHeadApart(a, chunks) ? a.loss.vocab_size * a.width * 4 : 0);
    bias = take(a.grad_bias != nullptr && RoundsHead(a) ? a.loss.vocab_size * 4 : 0);
    row_of = take(a.rows * 4);
    slot_of = take(a.rows * 4);
    positions = take(chunk_rows * 8);
    targets = take(chunk_rows * 4);
    upstream = take(chunk_rows * 4);
    losses = take(chunk_rows * 4);
    log_z = take(chunk_rows * 4);
    taken = take(sizeof(TakenRows));
    gathered = take(ranks * ContributionBytes(chunk_rows));
  }
  static constexpr std::int64_t kParts = 14;
};

// One call's chunk, by its place in the order of the taken rows.
class Chunked {
 public:
  Chunked(const LinearCall& call, const CrossEntropyLaunch& loss)
      : a_(call.args),
        call_(call),
        layout_(a_, call.plan.chunk_rows, call.plan.chunks, call.sharded != nullptr ? call.sharded->shard.group_size : 0),
        loss_(loss) {
    if (call.sharded != nullptr) loss_.vocab_size = static_cast<int>(call.sharded->shard.vocab_size);  // of targets
    const auto at = [&](std::int64_t offset) { return call.workspace + offset; };
    rows_.hidden = static_cast<const unsigned char*>(a_.hidden);
    rows_.grad_hidden = static_cast<unsigned char*>(a_.grad_hidden);
    rows_.hidden_stride_bytes = a_.hidden_stride * BytesOfType(a_.dtype);
    rows_.grad_hidden_stride_bytes = a_.grad_hidden_stride * BytesOfType(a_.dtype);
    rows_.dtype = a_.dtype;
    rows_.rows = static_cast<int>(a_.rows);
    rows_.width = static_cast<int>(a_.width);
    rows_.losses = loss.losses;
    rows_.log_z = loss.log_z;
    rows_.most_rows = static_cast<int>(MostUnmasked(a_));
    rows_.taken = reinterpret_cast<TakenRows*>(at(layout_.taken));
    rows_.row_of = reinterpret_cast<int*>(at(layout_.row_of));
    rows_.slot_of = reinterpret_cast<int*>(at(layout_.slot_of));
    rows_.chunk_hidden = at(layout_.hidden);
    rows_.chunk_targets = reinterpret_cast<int*>(at(layout_.targets));
    rows_.chunk_positions = reinterpret_cast<long long*>(at(layout_.positions));
    const bool per_row = loss.upstream != nullptr && loss.upstream_stride != 0;
    rows_.chunk_upstream = per_row ? reinterpret_cast<float*>(at(layout_.upstream)) : nullptr;
    rows_.chunk_losses = reinterpret_cast<float*>(at(layout_.losses));
    rows_.chunk_log_z = reinterpret_cast<float*>(at(layout_.log_z));
    if (loss_.count_denominator) {
      loss_.count_denominator = 0;
      loss_.denominator_pointer = &rows_.taken->denominator;
    }
    rows_.counts_hidden = OwnsHiddenGradient(call);
    rows_.loss = &loss_;

    chunk_loss_ = loss_;
    chunk_loss_.logits = at(layout_.logits);
    chunk_loss_.grad = WantsGradient(a_) ? at(layout_.logits) : nullptr;
    chunk_loss_.row_stride_bytes = chunk_loss_.grad_stride_bytes = LogitsStride(a_) * BytesOfType(a_.dtype);
    chunk_loss_.columns = chunk_loss_.vocab_size = static_cast<int>(a_.loss.vocab_size);
    chunk_loss_.targets = rows_.chunk_targets;
    chunk_loss_.targets_are_int64 = 0;
    chunk_loss_.target_stride = 1;
    chunk_loss_.ignore_index = -1;
    const bool judged = loss.counters != nullptr && rows_.grad_hidden != nullptr;  // a row's loss tells whether its squares count
    chunk_loss_.losses = loss.losses != nullptr || judged ? rows_.chunk_losses : nullptr;
    chunk_loss_.log_z = loss.log_z != nullptr ? rows_.chunk_log_z : nullptr;
    chunk_loss_.positions = rows_.chunk_positions;
    if (per_row) {
      chunk_loss_.upstream = rows_.chunk_upstream;
      chunk_loss_.upstream_stride = 1;
    }
  }

  const LinearRows& rows() const { return rows_; }
  const CrossEntropyLaunch& loss() const { return loss_; }
  std::int64_t chunks() const { return call_.plan.chunks; }
  // Chunks that all others are like: the first, which overwrites sums, the second, which adds to them, and the last, which may be short. Returns how many there
  // are.
  static constexpr int kKinds = 3;
  int Kinds(std::int64_t (&kinds)[kKinds]) const {
    int count = 0;
    for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{1}, chunks() - 1}) {
      if (chunk >= count && chunk < chunks()) kinds[count++] = chunk;  // they rise
    }
    return count;
  }
  bool HasSameShape(Product product, std::int64_t a, std::int64_t b) const {
    const ProductShape x = ShapeOf(product, a), y = ShapeOf(product, b);
    return x.rows == y.rows && x.add == y.add;  // the rest is the call's
  }
  std::int64_t RowsOf(std::int64_t chunk) const {
    const std::int64_t left = MostUnmasked(a_) - chunk * call_.plan.chunk_rows;
    return std::min(call_.plan.chunk_rows, RoundUp(left, kRowGranule));
  }
  const CrossEntropyLaunch& LossOf(std::int64_t chunk, bool last) {
    chunk_loss_.rows = RowsOf(chunk);
    chunk_loss_.more_parts = !last;
    return chunk_loss_;
  }
  // Without rows: for the call's loss and its micro-batch.
  const CrossEntropyLaunch& EmptyLoss() {
    chunk_loss_.rows = 0;
    chunk_loss_.columns = chunk_loss_.vocab_size = std::max(1, chunk_loss_.vocab_size);
    chunk_loss_.more_parts = 0;
    return chunk_loss_;
  }

  // Both of a chunk's kernels, if it has an exchange between them.
  ShardLaunch ShardOf(std::int64_t chunk, bool last) {
    const std::int64_t bytes = ContributionBytes(call_.plan.chunk_rows);
    const lg_vocab_parallel_args args = ChunkOf(*call_.sharded, chunk, bytes);
    ShardLaunch s{};
    s.loss = LossOf(chunk, last);
    s.own = ShardHeaderOf(args);
    s.gathered = call_.workspace + layout_.gathered;
    s.gathered_stride = bytes;
    s.contribution = call_.workspace + layout_.gathered + args.group_index * bytes;
    return s;
  }

  ProductShape ShapeOf(Product product, std::int64_t chunk) const {
    ProductShape s{};
    s.product = product;
    s.dtype = s.out_dtype = a_.dtype;
    s.rows = RowsOf(chunk);
    s.columns = a_.loss.vocab_size;
    s.width = a_.width;
    s.hidden_stride = a_.width;
    s.weight_stride = a_.weight_stride;
    s.logits_stride = LogitsStride(a_);
    s.bias = product == Product::kLogits && a_.bias != nullptr;
    if (product == Product::kGradWeight) {
      const bool apart = SumsHeadApart(a_, chunks());
      s.out_dtype = apart ? LG_FP32 : a_.head_grad_dtype;
      s.grad_weight_stride = apart ? a_.width : a_.grad_weight_stride;
      s.add = chunk > 0 || (!apart && a_.accumulate != 0);
    }
    return s;
  }
  ProductOperands Operands() const {
    unsigned char* const workspace = call_.workspace;
    void* const head = SumsHeadApart(a_, chunks()) ? workspace + layout_.head : a_.grad_weight;
    return {workspace + layout_.hidden, a_.weight, a_.bias, workspace + layout_.logits, head, workspace + layout_.hidden};
  }
  bool Wants(Product product) const {
    if (a_.loss.vocab_size == 0) return false;  // a shard of padding alone
    if (product == Product::kGradWeight) return a_.grad_weight != nullptr;
    return product == Product::kLogits || a_.grad_hidden != nullptr;
  }
  void* product_workspace() const { return call_.workspace + layout_.products; }

  ColumnSumLaunch BiasOf(std::int64_t chunk) const {
    ColumnSumLaunch s{};
    s.grad = call_.workspace + layout_.logits;
    s.row_stride_bytes = chunk_loss_.row_stride_bytes;
    s.dtype = a_.dtype;
    s.rows = static_cast<int>(RowsOf(chunk));
    s.columns = static_cast<int>(a_.loss.vocab_size);
    s.sums = RoundsHead(a_) ? reinterpret_cast<float*>(call_.workspace + layout_.bias) : static_cast<float*>(a_.grad_bias);
    s.add = chunk > 0 || (!RoundsHead(a_) && a_.accumulate != 0);
    return s;
  }
  // What is left to do to grad_weight after the last chunk; false = nothing.
  bool FinishWeight(FinishGradientLaunch* finish) const {
    const bool apart = SumsHeadApart(a_, chunks());
    if (!apart && !CountsWeight()) return false;
    *finish = WeightPass(apart ? static_cast<const void*>(call_.workspace + layout_.head) : a_.grad_weight, apart ? a_.width : a_.grad_weight_stride);
    finish->out = apart ? a_.grad_weight : nullptr;
    return true;
  }
  // Before the first chunk: the squares of a grad_weight that products add to come off; false = nothing.
  bool DiscountWeight(FinishGradientLaunch* discount) const {
    if (a_.accumulate == 0 || SumsHeadApart(a_, chunks()) || !CountsWeight()) return false;
    *discount = WeightPass(a_.grad_weight, a_.grad_weight_stride);
    discount->sign = -1;
    return true;
  }

 private:
  bool CountsWeight() const { return loss_.counters != nullptr && HasHeadSquares(a_, chunks()); }
  FinishGradientLaunch WeightPass(const void* sums, std::int64_t stride) const {
    FinishGradientLaunch pass{};
    pass.sums = static_cast<const float*>(sums);
    pass.sums_stride = stride;
    pass.out_stride = a_.grad_weight_stride;
    pass.out_dtype = a_.head_grad_dtype;
    pass.add = a_.accumulate != 0;
    pass.rows = a_.loss.vocab_size;
    pass.width = static_cast<int>(a_.width);
    pass.loss = loss_;
    if (!CountsWeight()) pass.loss.counters = nullptr;
    pass.sign = 1;
    pass.taken = &rows_.taken->count;
    return pass;
  }

  const lg_linear_cross_entropy_args& a_;
  const LinearCall& call_;
  const Layout layout_;
  LinearRows rows_{};
  CrossEntropyLaunch loss_;  // over the call's rows
  CrossEntropyLaunch chunk_loss_;
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_LINEAR_CHUNKS_H_
