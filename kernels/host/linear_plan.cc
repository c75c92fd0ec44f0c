#include "kernels/host/linear_plan.h"

#include <algorithm>

#include "kernels/host/error.h"

namespace lossgauge {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 62;

std::int64_t Sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? kMost : std::min(sum, kMost);
}
std::int64_t Product(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMost : std::min(product, kMost);
}

std::int64_t Chunks(std::int64_t rows, std::int64_t chunk) { return rows / chunk + (rows % chunk != 0 ? 1 : 0); }

// Of a chunk of `chunk` rows.
std::int64_t Bytes(const LinearMemory& memory, std::int64_t rows, std::int64_t chunk) {
  const std::int64_t fixed = Sum(memory.fixed, chunk < rows ? memory.several_chunks : 0);
  return Sum(fixed, Product(chunk, Sum(memory.logits_row, memory.other_row)));
}

// Most rows of a chunk within `budget` bytes; 0 = not one.
std::int64_t MostRows(const LinearMemory& memory, std::int64_t rows, std::int64_t budget) {
  if (Bytes(memory, rows, rows) <= budget) return rows;
  const std::int64_t left = budget - Sum(memory.fixed, memory.several_chunks);
  return left < 0 ? 0 : std::min(rows - 1, left / std::max<std::int64_t>(1, Sum(memory.logits_row, memory.other_row)));
}

// As many chunks as `most` rows each make necessary, but about equally long: a short last one would run its products at a poor shape.
std::int64_t Even(std::int64_t rows, std::int64_t most, std::int64_t granule) {
  if (most >= rows || most < granule) return std::min(rows, most);
  const std::int64_t chunks = Chunks(rows, most / granule * granule);
  return Chunks(Chunks(rows, chunks), granule) * granule;
}

}  // namespace

int PlanLinear(const lg_linear_cross_entropy_args& args, const LinearMemory& memory, const LinearLimits& limits, const char* function,
               lg_linear_plan* plan) noexcept {
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  const std::int64_t rows = std::max<std::int64_t>(1, limits.rows);  // a call without rows may still write gradients of zeros
  const std::int64_t budget = args.memory_budget != 0 ? args.memory_budget : kMost - 1;
  const std::int64_t most = MostRows(memory, rows, budget);
  if (most < 1) {
    return SetError(LG_INVALID_ARGUMENT, "%s: memory_budget: expected at least %lld bytes, for one row of logits and what goes with it, got %lld", function,
                    number(Bytes(memory, rows, 1)), number(budget));
  }
  std::int64_t chunk;
  if (args.chunk_rows != 0) {
    chunk = std::min(args.chunk_rows, rows);
    if (chunk > most) {
      return SetError(LG_INVALID_ARGUMENT, "%s: memory_budget: expected at least %lld bytes for chunk_rows = %lld, got %lld", function,
                      number(Bytes(memory, rows, chunk)), number(args.chunk_rows), number(budget));
    }
  } else {
    chunk = Even(rows, args.memory_budget != 0 ? most : std::min(most, limits.default_rows), std::max<std::int64_t>(1, limits.granule));
  }
  const std::int64_t bytes = Bytes(memory, rows, chunk);
  if (args.workspace != nullptr && args.workspace_bytes < bytes) {
    return SetError(LG_INVALID_ARGUMENT, "%s: workspace_bytes: expected at least %lld, as lg_linear_cross_entropy_plan says, got %lld", function, number(bytes),
                    number(args.workspace_bytes));
  }
  plan->struct_size = sizeof *plan;
  plan->chunk_rows = chunk;
  plan->chunks = limits.rows > 0 ? Chunks(limits.rows, chunk) : 0;
  plan->workspace_bytes = bytes;
  plan->logits_bytes = Product(chunk, memory.logits_row);
  return LG_OK;
}

}  // namespace lossgauge
