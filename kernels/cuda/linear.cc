#include "kernels/cuda/linear.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_chunks.h"
#include "kernels/cuda/linear_skip.h"
#include "kernels/cuda/nccl.h"
#include "kernels/host/error.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::cuda {
namespace {

using Args = lg_linear_cross_entropy_args;

constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // positions of rows are 32-bit numbers
constexpr std::int64_t kMostRowBytes = (std::int64_t{1} << 31) - 1;

constexpr std::array<Product, 3> kProducts = {Product::kLogits, Product::kGradWeight, Product::kGradHidden};

// Every product of the call, once for each of its shapes: `use` takes product and chunk and returns an lg_code.
template <class F>
int ForEachShape(const Chunked& chunked, const F& use) {
  std::int64_t kinds[Chunked::kKinds];
  const int count = chunked.Kinds(kinds);
  for (const Product product : kProducts) {
    for (int i = 0; chunked.Wants(product) && i < count; ++i) {
      const auto is_same = [&](std::int64_t before) { return chunked.HasSameShape(product, before, kinds[i]); };
      if (std::any_of(kinds, kinds + i, is_same)) continue;
      if (const int code = use(product, kinds[i]); code != LG_OK) return code;
    }
  }
  return LG_OK;
}

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
cudaError_t FinishBias(const DeviceFacts& device, const Args& a, const ColumnSumLaunch& from, cudaStream_t stream) {
  constexpr int kWidth = 256;
  FinishGradientLaunch f{};
  f.sums = from.sums;
  f.sums_stride = f.out_stride = f.width = kWidth;
  f.out = a.grad_bias;
  f.out_dtype = a.head_grad_dtype;
  f.add = a.accumulate != 0;
  f.rows = from.columns / kWidth;
  cudaError_t error = FinishGradient(device, f, stream);
  const std::int64_t done = f.rows * kWidth;
  if (error != cudaSuccess || done == from.columns) return error;
  f.sums += done;
  f.out = static_cast<unsigned char*>(f.out) + done * 2;
  f.rows = 1;
  f.width = from.columns - static_cast<int>(done);
  return FinishGradient(device, f, stream);
}

// What went wrong on the way: a CUDA error, a cuBLASLt status, or an lg_code whose words are set.
struct Fault {
  cudaError_t error = cudaSuccess;
  int status = 0;
  const char* what = "";
  int code = LG_OK;
  bool none() const { return error == cudaSuccess && status == 0 && code == LG_OK; }
};

// Enqueues the exchange of a chunk. Returns an lg_code.
int Exchange(const LinearCall& call, const ShardLaunch& shard, std::int64_t chunk, cudaStream_t stream) {
  const ShardedLinear& s = *call.sharded;
  unsigned char* const gathered = const_cast<unsigned char*>(shard.gathered);
  if (s.exchange != nullptr) {
    const int code = s.exchange(s.exchange_context, shard.contribution, gathered, shard.gathered_stride, stream);
    if (code == LG_OK) return LG_OK;
    return SetError(static_cast<lg_code>(code), "%s: exchange: of chunk %lld returned %d", call.function, static_cast<long long>(chunk), code);
  }
  if (s.communicator == nullptr) return LG_OK;
  const int error =
      call.nccl->AllGather(shard.contribution, gathered, static_cast<std::size_t>(shard.gathered_stride / 8), Nccl::kUint64, s.communicator, stream);
  return error == 0 ? static_cast<int>(LG_OK) : call.nccl->SetError(error, call.function, "ncclAllGather");
}

// Loss of a chunk and the gradient of its logits in their place.
Fault EnqueueLoss(const LinearCall& call, Chunked* chunked, std::int64_t chunk, bool last, cudaStream_t stream) {
  const DeviceFacts& device = call.device->facts();
  const int dtype = call.args.dtype;
  if (call.sharded == nullptr) return {LaunchCrossEntropy(device, dtype, chunked->LossOf(chunk, last), stream), 0, "loss"};
  const ShardLaunch shard = chunked->ShardOf(chunk, last);
  if (const cudaError_t error = LaunchShardBegin(device, dtype, shard, stream); error != cudaSuccess) return {error, 0, "reading a shard"};
  if (const int code = Exchange(call, shard, chunk, stream); code != LG_OK) return {cudaSuccess, 0, "", code};
  return {LaunchShardFinish(device, dtype, shard, stream), 0, "loss"};
}

// The chunk's gradient of the hidden states, summed over the group if that is asked for.
Fault EnqueueHidden(const LinearCall& call, const Chunked& chunked, std::int64_t chunk, cudaStream_t stream) {
  const Args& a = call.args;
  void* const grad = chunked.Operands().grad_hidden;
  const auto count = static_cast<std::size_t>(chunked.RowsOf(chunk) * a.width);
  if (a.loss.vocab_size == 0) {
    const cudaError_t error = cudaMemsetAsync(grad, 0, count * static_cast<std::size_t>(BytesOfType(a.dtype)), stream);
    if (error != cudaSuccess) return {error, 0, "grad_hidden"};
  } else {
    const int status = call.products->Multiply(chunked.ShapeOf(Product::kGradHidden, chunk), chunked.Operands(), chunked.product_workspace(), stream);
    if (status != 0) return {cudaSuccess, status, "product for grad_hidden"};
  }
  if (call.sharded == nullptr || !call.sharded->reduces_hidden || call.sharded->communicator == nullptr) return {};
  const int error = call.nccl->AllReduce(grad, grad, count, Nccl::FloatType(a.dtype), Nccl::kSum, call.sharded->communicator, stream);
  return {cudaSuccess, 0, "", error == 0 ? static_cast<int>(LG_OK) : call.nccl->SetError(error, call.function, "ncclAllReduce")};
}

Fault EnqueueChunk(const LinearCall& call, Chunked* chunked, std::int64_t chunk, bool last, cudaStream_t stream) {
  const Args& a = call.args;
  const int begin = static_cast<int>(chunk * call.plan.chunk_rows), rows = static_cast<int>(chunked->RowsOf(chunk));
  const auto multiply = [&](Product product) {
    return call.products->Multiply(chunked->ShapeOf(product, chunk), chunked->Operands(), chunked->product_workspace(), stream);
  };
  cudaError_t error = GatherRows(chunked->rows(), begin, rows, stream);
  if (error != cudaSuccess) return {error, 0, "gathering rows"};
  if (chunked->Wants(Product::kLogits)) {
    if (const int status = multiply(Product::kLogits); status != 0) return {cudaSuccess, status, "product for logits"};
  }
  if (const Fault fault = EnqueueLoss(call, chunked, chunk, last, stream); !fault.none()) return fault;
  if (chunked->Wants(Product::kGradWeight)) {
    if (const int status = multiply(Product::kGradWeight); status != 0) return {cudaSuccess, status, "product for grad_weight"};
  }
  if (a.grad_bias != nullptr && a.loss.vocab_size > 0) {
    if (error = SumColumns(chunked->BiasOf(chunk), stream); error != cudaSuccess) return {error, 0, "grad_bias"};
  }
  // Last: it overwrites the chunk's hidden states.
  if (a.grad_hidden != nullptr) {
    if (const Fault fault = EnqueueHidden(call, *chunked, chunk, stream); !fault.none()) return fault;
  }
  error = ScatterRows(chunked->rows(), begin, rows, stream);
  return {error, 0, "scattering rows"};
}

Fault EnqueueChunks(const LinearCall& call, Chunked* chunked) {
  const Args& a = call.args;
  const DeviceFacts& device = call.device->facts();
  const cudaStream_t stream = call.stream;
  const std::int64_t chunks = chunked->chunks();
  const bool has_head = chunks > 0 && a.loss.vocab_size > 0;
  cudaError_t error = CompactRows(chunked->rows(), stream);
  if (error != cudaSuccess) return {error, 0, "compaction"};
  if (error = ClearLeftOut(device, chunked->rows(), stream); error != cudaSuccess) return {error, 0, "masked rows"};
  if (error = ClearHead(a, chunks > 0 ? a.loss.vocab_size : 0, a.columns, stream); error != cudaSuccess) return {error, 0, "padding of the head"};
  FinishGradientLaunch pass;
  if (has_head && chunked->DiscountWeight(&pass)) {
    if (error = FinishGradient(device, pass, stream); error != cudaSuccess) return {error, 0, "head_grad_sq_sum"};
  }
  // The first chunk always runs: it overwrites the head's gradients. Which one is the last with rows is known in a replay only, so that what ends the call's
  // loss is a launch without rows behind them all. Chunks with an exchange all run: others wait in it.
  std::optional<SkippableParts> skippable;
  if (call.capturing && chunks > 1 && call.sharded == nullptr) skippable.emplace(stream, static_cast<int>(chunks - 1));
  const bool skips = skippable && skippable->possible();
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const bool conditional = skips && chunk > 0;
    if (conditional) {
      error = skippable->Begin(&chunked->rows().taken->count, static_cast<int>(chunk * call.plan.chunk_rows));
      if (error != cudaSuccess) return {error, 0, "conditional node"};
    }
    const Fault fault = EnqueueChunk(call, chunked, chunk, !skips && chunk + 1 == chunks, conditional ? skippable->body() : stream);
    if (!fault.none()) return fault;
    if (conditional) {
      if (error = skippable->End(); error != cudaSuccess) return {error, 0, "conditional node"};
    }
  }
  if (chunks == 0 || skips) {
    if (error = LaunchCrossEntropy(device, a.dtype, chunked->EmptyLoss(), stream); error != cudaSuccess) return {error, 0, "loss"};
  }
  if (has_head && chunked->FinishWeight(&pass)) {
    if (error = FinishGradient(device, pass, stream); error != cudaSuccess) return {error, 0, "grad_weight"};
  }
  if (has_head && a.grad_bias != nullptr && RoundsHead(a)) {
    if (error = FinishBias(device, a, chunked->BiasOf(0), stream); error != cudaSuccess) return {error, 0, "grad_bias"};
  }
  return {};
}

int Report(const Fault& fault, const char* function) {
  if (fault.none()) return LG_OK;
  if (fault.code != LG_OK) return fault.code;
  if (fault.error != cudaSuccess) return SetCudaError(fault.error, function, fault.what);
  return SetError(IsOutOfMemory(fault.status) ? LG_RESOURCE_EXHAUSTED : LG_UNAVAILABLE, "%s: %s: %s", function, fault.what, ProductErrorName(fault.status));
}

// Rows are counted in bytes by 32-bit numbers, and CUDA's copies and memsets of rows take strides below 2^31 bytes.
int CheckRowBytes(const Args& a, const char* function) {
  const std::int64_t bytes = BytesOfType(a.dtype), head_bytes = BytesOfType(a.head_grad_dtype);
  const struct {
    const char* name;
    std::int64_t elements, bytes;
  } rows[] = {{"width", a.width, bytes},
              {"hidden_stride", a.hidden_stride, bytes},
              {"grad_weight_stride", a.grad_weight != nullptr ? a.grad_weight_stride : 0, head_bytes}};
  for (const auto& row : rows) {
    const std::int64_t most = kMostRowBytes / row.bytes;
    if (row.elements <= most) continue;
    return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected less than 2^31 bytes on a device, %lld elements of %lld, got %lld", function, row.name,
                    static_cast<long long>(most), static_cast<long long>(row.bytes), static_cast<long long>(row.elements));
  }
  return LG_OK;
}

}  // namespace

int PlanLinearOnDevice(const Args& a, const ShardedLinear* sharded, const char* function, lg_linear_plan* plan) noexcept {
  if (a.logits_dtype != a.dtype) {
    return SetError(LG_UNIMPLEMENTED, "%s: logits_dtype: expected dtype (%d) on a device, got %d", function, a.dtype, a.logits_dtype);
  }
  if (a.rows > kMostRows || a.columns > kMostRows) {
    return SetError(LG_INVALID_ARGUMENT, "%s: rows, columns: expected at most 2^30 on a device, got %lld, %lld", function, static_cast<long long>(a.rows),
                    static_cast<long long>(a.columns));
  }
  if (const int code = CheckRowBytes(a, function); code != LG_OK) return code;
  LinearMemory memory;
  memory.logits_row = LogitsStride(a) * BytesOfType(a.dtype);
  memory.other_row = a.width * BytesOfType(a.dtype) + 24;
  memory.fixed = static_cast<std::int64_t>(kProductWorkspaceBytes) + a.rows * 8 + Layout::kParts * kAlignment;
  if (sharded != nullptr) {
    memory.other_row += sharded->shard.group_size * std::int64_t{LG_SHARD_ROW_BYTES};
    memory.fixed += sharded->shard.group_size * std::int64_t{LG_SHARD_HEADER_BYTES};
  }
  if (a.grad_bias != nullptr && RoundsHead(a)) memory.fixed += a.loss.vocab_size * 4;
  if (a.grad_weight != nullptr && RoundsHead(a)) (a.head_grad_signal != 0 ? memory.fixed : memory.several_chunks) += a.loss.vocab_size * a.width * 4;
  LinearLimits limits;
  limits.rows = MostUnmasked(a);
  // As measured on an H200: products want two thousand rows or, with a small vocabulary, as many as half a gigabyte of logits holds. With half as many, what
  // summing grad_weight in fp32 moves shows; twice as many gain 1 % at most.
  limits.granule = 256;
  constexpr std::int64_t kLogitsBytes = std::int64_t{576} << 20;
  // Ranks choose alike, whatever their shards.
  const std::int64_t default_row = sharded != nullptr ? LogitsRow(EvenShard(*sharded), a.dtype) : memory.logits_row;
  limits.default_rows = std::max(std::int64_t{1024}, kLogitsBytes / default_row);
  return PlanLinear(a, memory, limits, function, plan);
}

int BeginLinear(const Args& args, Device* device, bool capturing, const char* function, LinearCall* call) {
  call->args = args;
  call->device = device;
  call->workspace = static_cast<unsigned char*>(args.workspace);
  call->stream = static_cast<cudaStream_t>(args.loss.stream);
  call->capturing = capturing;
  call->function = function;
  if (const int code = PlanLinearOnDevice(args, call->sharded, function, &call->plan); code != LG_OK) return code;
  const char* why = "";
  call->products = Products::Get(device->facts().ordinal, &why);
  if (call->products == nullptr) return SetError(LG_UNAVAILABLE, "%s: cuBLASLt, which multiplies on a device, cannot be loaded: %s", function, why);
  if (call->workspace == nullptr) {
    const cudaError_t error =
        HoldWorkspace(device->facts().ordinal, call->stream, static_cast<std::size_t>(call->plan.workspace_bytes), capturing, &call->held);
    if (error == cudaErrorStreamCaptureUnsupported) {
      (void)cudaGetLastError();
      return SetError(LG_FAILED_PRECONDITION, "%s: workspace: taking %lld bytes cannot be captured; call lg_linear_cross_entropy_prepare on the stream before, or give one",
                      function, static_cast<long long>(call->plan.workspace_bytes));
    }
    if (error != cudaSuccess) return SetCudaError(error, function, "workspace");
    call->workspace = static_cast<unsigned char*>(call->held.memory);
  }
  const Chunked chunked(*call, CrossEntropyLaunch{});
  return ForEachShape(chunked, [&](Product product, std::int64_t chunk) {
    const int status = call->products->Choose(chunked.ShapeOf(product, chunk), chunked.Operands());
    if (status == 0) return static_cast<int>(LG_OK);
    if (IsOutOfMemory(status)) return Report({cudaSuccess, status, "choosing an algorithm for a product"}, function);
    return SetError(LG_UNIMPLEMENTED, "%s: cuBLASLt has no algorithm for one of its products: %s", function, ProductErrorName(status));
  });
}

unsigned long long LinearPresent(const LinearCall& call) {
  unsigned long long present = 0;
  if (WantsGradient(call.args)) present |= LG_HAS_LOGIT_GRAD | LG_HAS_MASS;
  if (call.args.grad_hidden != nullptr && OwnsHiddenGradient(call)) present |= LG_HAS_HIDDEN_GRAD;
  if (call.sharded != nullptr) present |= LG_HAS_EXCHANGE;
  if (HasHeadSquares(call.args, call.plan.chunks)) present |= LG_HAS_HEAD_GRAD;
  return present;
}

int EnqueueLinear(const LinearCall& call, const CrossEntropyLaunch& loss) noexcept {
  Chunked chunked(call, loss);
  const Fault fault = EnqueueChunks(call, &chunked);
  // The scratch serves other launches later, and the launch that would have cleared it may never have come.
  if (!fault.none()) (void)cudaMemsetAsync(loss.scratch, 0, sizeof *loss.scratch, call.stream);
  return Report(fault, call.function);
}

namespace {

// A product of a chunk, with the caller's gradients left as they are.
int TuneProduct(const LinearCall& call, const Chunked& chunked, Product product, std::int64_t chunk) {
  const ProductShape shape = chunked.ShapeOf(product, chunk);
  ProductOperands into = chunked.Operands();
  void* own = nullptr;
  if (product == Product::kGradWeight && into.grad_weight == call.args.grad_weight) {
    const auto bytes = static_cast<std::size_t>(shape.columns * shape.grad_weight_stride * BytesOfType(shape.out_dtype) + kAlignment);
    cudaError_t error = cudaMallocAsync(&own, bytes, call.stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(own, 0, bytes, call.stream);
    if (error != cudaSuccess) {
      if (own != nullptr) (void)cudaFreeAsync(own, call.stream);
      (void)cudaGetLastError();
      return LG_OK;  // no memory to try in: cuBLASLt's first choice serves
    }
    into.grad_weight = AlignedLike(call.args.grad_weight, own);
  }
  const int status = call.products->Tune(shape, into, chunked.product_workspace(), call.stream);
  if (own != nullptr) (void)cudaFreeAsync(own, call.stream);
  return Report({cudaSuccess, status, "timing products"}, call.function);
}

}  // namespace

int TuneLinear(const LinearCall& call) {
  const Args& a = call.args;
  const Chunked chunked(call, CrossEntropyLaunch{});
  cudaError_t error = cudaSuccess;
  if (chunked.chunks() > 0) {
    const std::int64_t rows = std::min(chunked.RowsOf(0), a.rows), row_bytes = a.width * BytesOfType(a.dtype);
    // Real hidden states: the clocks that a card holds depend on what it multiplies.
    error = cudaMemcpy2DAsync(chunked.Operands().grad_hidden, static_cast<std::size_t>(row_bytes), a.hidden, static_cast<std::size_t>(a.hidden_stride * BytesOfType(a.dtype)),
                              static_cast<std::size_t>(row_bytes), static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, call.stream);
    if (error != cudaSuccess) return SetCudaError(error, call.function, "copy of hidden");
  }
  const int code = ForEachShape(chunked, [&](Product product, std::int64_t chunk) { return TuneProduct(call, chunked, product, chunk); });
  error = cudaStreamSynchronize(call.stream);
  if (code != LG_OK) return code;
  return error == cudaSuccess ? LG_OK : SetCudaError(error, call.function, "timing products");
}

}  // namespace lossgauge::cuda
