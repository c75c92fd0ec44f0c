#include "kernels/cuda/linear.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_head.h"
#include "kernels/cuda/linear_rows.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/workspace.h"
#include "kernels/host/error.h"
#include "kernels/host/linear_arguments.h"
#include "kernels/host/linear_plan.h"
#include "kernels/host/tensor_span.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::cuda {
namespace {

using Args = lg_linear_cross_entropy_args;

constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // positions of rows are 32-bit numbers
constexpr std::int64_t kAlignment = 256;
// Rows of logits begin at whole lines.
constexpr std::int64_t kLogitsAlignment = 128;
// Rows of a chunk are rounded up to this, as long as the chunk holds them: products with few odd rows at the end are slow.
constexpr std::int64_t kRowGranule = 64;

std::int64_t LogitsStride(const Args& a) { return RoundUp(a.loss.vocab_size * BytesOfType(a.dtype), kLogitsAlignment) / BytesOfType(a.dtype); }
std::int64_t MostUnmasked(const Args& a) { return a.most_unmasked_rows >= 0 ? std::min(a.rows, a.most_unmasked_rows) : a.rows; }

bool RoundsHead(const Args& a) { return a.head_grad_dtype != LG_FP32; }
// grad_weight is summed in memory of ours and rounded at the end. With one chunk the product itself rounds, unless its squares are wanted.
bool SumsHeadApart(const Args& a, std::int64_t chunks) {
  return a.grad_weight != nullptr && RoundsHead(a) && (chunks > 1 || a.head_grad_signal != 0);
}
bool HasHeadSquares(const Args& a, std::int64_t chunks) {
  const bool one_factor = a.loss.upstream == nullptr || a.loss.upstream_stride == 0;
  return a.grad_weight != nullptr && a.accumulate == 0 && one_factor && (a.head_grad_signal != 0 || SumsHeadApart(a, chunks));
}

// Where things lie in the workspace.
struct Layout {
  std::int64_t logits, hidden, products, head, bias, row_of, slot_of, positions, targets, upstream, losses, log_z, taken, bytes;

  Layout(const Args& a, std::int64_t chunk_rows, std::int64_t chunks) {
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
    bytes = at;
  }
  static constexpr std::int64_t kParts = 13;
};

int CudaFailed(cudaError_t error, const char* function, const char* what) {
  (void)cudaGetLastError();  // reported here; the job's own next check must not see it
  return SetError(error == cudaErrorMemoryAllocation ? LG_RESOURCE_EXHAUSTED : LG_UNAVAILABLE, "%s: %s: %s", function, what, cudaGetErrorString(error));
}

// One call's chunk, by its place in the order of the taken rows.
class Chunked {
 public:
  Chunked(const LinearCall& call, const CrossEntropyLaunch& loss)
      : a_(call.args), call_(call), layout_(a_, call.plan.chunk_rows, call.plan.chunks), loss_(loss), chunk_loss_(loss) {
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
    rows_.most_rows = static_cast<int>(Capacity());
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
    chunk_loss_.losses = loss.losses != nullptr ? rows_.chunk_losses : nullptr;
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
  // Rows that the chunks have room for.
  std::int64_t Capacity() const {
    std::int64_t capacity = 0;
    for (std::int64_t chunk = 0; chunk < chunks(); ++chunk) capacity += RowsOf(chunk);
    return std::min(capacity, a_.rows);
  }
  std::int64_t RowsOf(std::int64_t chunk) const {
    const std::int64_t left = MostUnmasked(a_) - chunk * call_.plan.chunk_rows;
    return std::min(call_.plan.chunk_rows, RoundUp(left, kRowGranule));
  }
  const CrossEntropyLaunch& LossOf(std::int64_t chunk) {
    chunk_loss_.rows = RowsOf(chunk);
    chunk_loss_.more_parts = chunk + 1 < chunks();
    return chunk_loss_;
  }
  // Without rows to take: for the loss and the micro-batch.
  const CrossEntropyLaunch& EmptyLoss() {
    chunk_loss_.rows = 0;
    chunk_loss_.more_parts = 0;
    return chunk_loss_;
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
    const bool squares = loss_.counters != nullptr && HasHeadSquares(a_, chunks());
    if (!apart && !squares) return false;
    *finish = FinishGradientLaunch{};
    finish->sums = static_cast<const float*>(apart ? static_cast<void*>(call_.workspace + layout_.head) : a_.grad_weight);
    finish->sums_stride = apart ? a_.width : a_.grad_weight_stride;
    finish->out = apart ? a_.grad_weight : nullptr;
    finish->out_stride = a_.grad_weight_stride;
    finish->out_dtype = a_.head_grad_dtype;
    finish->add = a_.accumulate != 0;
    finish->rows = a_.loss.vocab_size;
    finish->width = static_cast<int>(a_.width);
    finish->counters = squares ? loss_.counters : nullptr;
    finish->upstream = loss_.upstream;
    finish->grad_scale = loss_.grad_scale;
    finish->denominator = loss_.denominator;
    finish->denominator_pointer = loss_.denominator_pointer;
    return true;
  }

 private:
  const Args& a_;
  const LinearCall& call_;
  const Layout layout_;
  LinearRows rows_{};
  CrossEntropyLaunch loss_;  // over the call's rows
  CrossEntropyLaunch chunk_loss_;
};

constexpr std::array<Product, 3> kProducts = {Product::kLogits, Product::kGradWeight, Product::kGradHidden};

// Rows [begin, end) of the head's gradients become 0.
cudaError_t ClearHead(const Args& a, std::int64_t begin, std::int64_t end, cudaStream_t stream) {
  if (a.accumulate != 0 || begin == end) return cudaSuccess;
  const std::int64_t bytes = BytesOfType(a.head_grad_dtype);
  cudaError_t error = cudaSuccess;
  if (a.grad_weight != nullptr) {
    error = cudaMemset2DAsync(static_cast<unsigned char*>(a.grad_weight) + begin * a.grad_weight_stride * bytes, static_cast<std::size_t>(a.grad_weight_stride * bytes), 0,
                              static_cast<std::size_t>(a.width * bytes), static_cast<std::size_t>(end - begin), stream);
  }
  if (error == cudaSuccess && a.grad_bias != nullptr) {
    error = cudaMemsetAsync(static_cast<unsigned char*>(a.grad_bias) + begin * bytes, 0, static_cast<std::size_t>((end - begin) * bytes), stream);
  }
  return error;
}

// The bias' gradient from its sums, in rows that CTAs can share.
cudaError_t FinishBias(const Args& a, const ColumnSumLaunch& from, cudaStream_t stream) {
  constexpr int kWidth = 256;
  FinishGradientLaunch f{};
  f.sums = from.sums;
  f.sums_stride = f.out_stride = f.width = kWidth;
  f.out = a.grad_bias;
  f.out_dtype = a.head_grad_dtype;
  f.add = a.accumulate != 0;
  f.rows = from.columns / kWidth;
  cudaError_t error = FinishGradient(f, stream);
  const std::int64_t done = f.rows * kWidth;
  if (error != cudaSuccess || done == from.columns) return error;
  f.sums += done;
  f.out = static_cast<unsigned char*>(f.out) + done * 2;
  f.rows = 1;
  f.width = from.columns - static_cast<int>(done);
  return FinishGradient(f, stream);
}

// What went wrong on the way: a CUDA error or a cuBLASLt status.
struct Fault {
  cudaError_t error = cudaSuccess;
  int status = 0;
  const char* what = "";
  bool none() const { return error == cudaSuccess && status == 0; }
};

Fault EnqueueChunks(const LinearCall& call, Chunked* chunked) {
  const Args& a = call.args;
  const cudaStream_t stream = call.stream;
  Products& products = *call.products;
  cudaError_t error = CompactRows(chunked->rows(), stream);
  if (error != cudaSuccess) return {error, 0, "compaction"};
  if (error = ClearLeftOut(chunked->rows(), stream); error != cudaSuccess) return {error, 0, "masked rows"};
  if (error = ClearHead(a, chunked->chunks() > 0 ? a.loss.vocab_size : 0, a.columns, stream); error != cudaSuccess) return {error, 0, "padding of the head"};
  if (chunked->chunks() == 0) {
    error = LaunchCrossEntropy(call.device->facts(), a.dtype, chunked->EmptyLoss(), stream);
    return {error, 0, "loss"};
  }
  for (std::int64_t chunk = 0; chunk < chunked->chunks(); ++chunk) {
    const int begin = static_cast<int>(chunk * call.plan.chunk_rows), rows = static_cast<int>(chunked->RowsOf(chunk));
    const auto multiply = [&](Product product) {
      return products.Multiply(chunked->ShapeOf(product, chunk), chunked->Operands(), chunked->product_workspace(), stream);
    };
    if (error = GatherRows(chunked->rows(), begin, rows, stream); error != cudaSuccess) return {error, 0, "gathering rows"};
    if (const int status = multiply(Product::kLogits); status != 0) return {cudaSuccess, status, "product for logits"};
    if (error = LaunchCrossEntropy(call.device->facts(), a.dtype, chunked->LossOf(chunk), stream); error != cudaSuccess) return {error, 0, "loss"};
    if (a.grad_weight != nullptr) {
      if (const int status = multiply(Product::kGradWeight); status != 0) return {cudaSuccess, status, "product for grad_weight"};
    }
    if (a.grad_bias != nullptr) {
      if (error = SumColumns(chunked->BiasOf(chunk), stream); error != cudaSuccess) return {error, 0, "grad_bias"};
    }
    // Last: it overwrites the chunk's hidden states.
    if (a.grad_hidden != nullptr) {
      if (const int status = multiply(Product::kGradHidden); status != 0) return {cudaSuccess, status, "product for grad_hidden"};
    }
    if (error = ScatterRows(chunked->rows(), begin, rows, stream); error != cudaSuccess) return {error, 0, "scattering rows"};
  }
  FinishGradientLaunch finish;
  if (chunked->FinishWeight(&finish)) {
    if (error = FinishGradient(finish, stream); error != cudaSuccess) return {error, 0, "grad_weight"};
  }
  if (a.grad_bias != nullptr && RoundsHead(a)) {
    if (error = FinishBias(a, chunked->BiasOf(0), stream); error != cudaSuccess) return {error, 0, "grad_bias"};
  }
  return {};
}

int Report(const Fault& fault, const char* function) {
  if (fault.none()) return LG_OK;
  if (fault.error != cudaSuccess) return CudaFailed(fault.error, function, fault.what);
  return SetError(LG_UNAVAILABLE, "%s: %s: %s", function, fault.what, ProductErrorName(fault.status));
}

}  // namespace

int PlanLinearOnDevice(const Args& a, const char* function, lg_linear_plan* plan) noexcept {
  if (a.logits_dtype != a.dtype) {
    return SetError(LG_UNIMPLEMENTED, "%s: logits_dtype: expected dtype (%d) on a device, got %d", function, a.dtype, a.logits_dtype);
  }
  if (a.rows > kMostRows || a.width > kMostRows || a.columns > kMostRows) {
    return SetError(LG_INVALID_ARGUMENT, "%s: rows, width, columns: expected at most 2^30 on a device, got %lld, %lld, %lld", function,
                    static_cast<long long>(a.rows), static_cast<long long>(a.width), static_cast<long long>(a.columns));
  }
  LinearMemory memory;
  memory.logits_row = LogitsStride(a) * BytesOfType(a.dtype);
  memory.other_row = a.width * BytesOfType(a.dtype) + 24;
  memory.fixed = static_cast<std::int64_t>(kProductWorkspaceBytes) + a.rows * 8 + Layout::kParts * kAlignment;
  if (a.grad_bias != nullptr && RoundsHead(a)) memory.fixed += a.loss.vocab_size * 4;
  if (a.grad_weight != nullptr && RoundsHead(a)) (a.head_grad_signal != 0 ? memory.fixed : memory.several_chunks) += a.loss.vocab_size * a.width * 4;
  LinearLimits limits;
  limits.rows = MostUnmasked(a);
  limits.granule = 128;
  // As measured on an H200: summing grad_weight in fp32 moves 8 bytes an element and chunk, which half as many rows as the width keeps in the shadow of the
  // products; and products want two thousand rows or, with a small vocabulary, as many as half a gigabyte of logits holds.
  constexpr std::int64_t kLogitsBytes = std::int64_t{560} << 20;
  limits.default_rows = std::max({std::int64_t{1024}, a.width / 2, kLogitsBytes / memory.logits_row});
  return PlanLinear(a, memory, limits, function, plan);
}

int BeginLinear(const Args& args, Device* device, bool capturing, const char* function, LinearCall* call) {
  *call = LinearCall{args, {}, device, static_cast<unsigned char*>(args.workspace), static_cast<cudaStream_t>(args.loss.stream), function, nullptr};
  if (const int code = PlanLinearOnDevice(args, function, &call->plan); code != LG_OK) return code;
  const char* why = "";
  call->products = Products::Get(device->facts().ordinal, &why);
  if (call->products == nullptr) return SetError(LG_UNAVAILABLE, "%s: cuBLASLt, which multiplies on a device, cannot be loaded: %s", function, why);
  if (call->workspace == nullptr) {
    cudaError_t error = cudaSuccess;
    call->workspace = static_cast<unsigned char*>(WorkspaceOf(device->facts().ordinal, call->stream, static_cast<std::size_t>(call->plan.workspace_bytes), capturing, &error));
    if (error == cudaErrorStreamCaptureUnsupported) {
      (void)cudaGetLastError();
      return SetError(LG_FAILED_PRECONDITION, "%s: workspace: taking %lld bytes cannot be captured; call lg_linear_cross_entropy_prepare on the stream before, or give one",
                      function, static_cast<long long>(call->plan.workspace_bytes));
    }
    if (call->workspace == nullptr) return CudaFailed(error, function, "workspace");
  }
  const Chunked chunked(*call, CrossEntropyLaunch{});
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{1}, chunked.chunks() - 1}) {  // all others are like the second
    if (chunk < 0 || chunk >= chunked.chunks()) continue;
    for (const Product product : kProducts) {
      if (!chunked.Wants(product)) continue;
      const int status = call->products->Choose(chunked.ShapeOf(product, chunk), chunked.Operands());
      if (status != 0) return SetError(LG_UNIMPLEMENTED, "%s: cuBLASLt has no algorithm for one of its products: %s", function, ProductErrorName(status));
    }
  }
  return LG_OK;
}

unsigned long long LinearPresent(const LinearCall& call) {
  unsigned long long present = 0;
  if (WantsGradient(call.args)) present |= LG_HAS_LOGIT_GRAD | LG_HAS_MASS;
  if (call.args.grad_hidden != nullptr) present |= LG_HAS_HIDDEN_GRAD;
  if (HasHeadSquares(call.args, call.plan.chunks)) present |= LG_HAS_HEAD_GRAD;
  return present;
}

int EnqueueLinear(const LinearCall& call, const CrossEntropyLaunch& loss) {
  Chunked chunked(call, loss);
  const Fault fault = EnqueueChunks(call, &chunked);
  // The scratch serves other launches later, and the launch that would have cleared it may never have come.
  if (!fault.none()) (void)cudaMemsetAsync(loss.scratch, 0, sizeof *loss.scratch, call.stream);
  return Report(fault, call.function);
}

int TuneLinear(const LinearCall& call) {
  const Args& a = call.args;
  const Chunked chunked(call, CrossEntropyLaunch{});
  if (chunked.chunks() == 0) return LG_OK;
  const std::int64_t rows = chunked.RowsOf(0), row_bytes = a.width * BytesOfType(a.dtype);
  // Real hidden states: the clocks that a card holds depend on what it multiplies.
  ProductOperands operands = chunked.Operands();
  cudaError_t error = cudaMemcpy2DAsync(operands.grad_hidden, static_cast<std::size_t>(row_bytes), a.hidden, static_cast<std::size_t>(a.hidden_stride * BytesOfType(a.dtype)),
                                        static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(std::min(rows, a.rows)), cudaMemcpyDeviceToDevice, call.stream);
  if (error != cudaSuccess) return CudaFailed(error, call.function, "copy of hidden");
  for (const Product product : kProducts) {
    if (!chunked.Wants(product)) continue;
    const ProductShape first = chunked.ShapeOf(product, 0);
    ProductOperands into = operands;
    void* own = nullptr;
    // The caller's gradient stays as it is.
    if (product == Product::kGradWeight && into.grad_weight == a.grad_weight) {
      const auto bytes = static_cast<std::size_t>(first.columns * first.grad_weight_stride * BytesOfType(first.out_dtype));
      error = cudaMallocAsync(&own, bytes, call.stream);
      if (error == cudaSuccess) error = cudaMemsetAsync(own, 0, bytes, call.stream);
      if (error != cudaSuccess) {
        (void)cudaGetLastError();
        continue;  // no memory to try in: cuBLASLt's first choice serves
      }
      into.grad_weight = own;
    }
    int status = call.products->Tune(first, into, chunked.product_workspace(), call.stream);
    if (status == 0 && product == Product::kGradWeight && chunked.chunks() > 1 && !first.add) {
      status = call.products->Tune(chunked.ShapeOf(product, 1), into, chunked.product_workspace(), call.stream);
    }
    if (own != nullptr) (void)cudaFreeAsync(own, call.stream);
    if (status != 0) return Report({cudaSuccess, status, "timing products"}, call.function);
  }
  error = cudaStreamSynchronize(call.stream);
  return error == cudaSuccess ? LG_OK : CudaFailed(error, call.function, "timing products");
}

}  // namespace lossgauge::cuda
