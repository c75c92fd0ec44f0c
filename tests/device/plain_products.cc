#include "tests/device/plain_products.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace lossgauge {
namespace {

void Check(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: error %d\n", what, status);
  std::exit(1);
}

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
struct Library {
  cublasLtHandle_t handle;
  void* workspace;
  Library() {
    Check(cublasLtCreate(&handle), "cublasLtCreate");
    Check(cudaMalloc(&workspace, kWorkspaceBytes), "cudaMalloc");
  }
};
const Library& Lt() {
  static const Library library;
  return library;
}

}  // namespace

PlainProduct::PlainProduct(cublasOperation_t op_a, cublasOperation_t op_b, std::int64_t m, std::int64_t n, std::int64_t k, bool fp32_out, const void* a, const void* b,
                           void* d)
    : a_(a), b_(b), d_(d) {
  Check(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "desc");
  Check(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a), "op a");
  Check(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b), "op b");
  const auto layout = [](cublasLtMatrixLayout_t* made, cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
    Check(cublasLtMatrixLayoutCreate(made, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows), "layout");
  };
  const bool a_plain = op_a == CUBLAS_OP_N, b_plain = op_b == CUBLAS_OP_N;
  layout(&layout_a_, CUDA_R_16BF, a_plain ? m : k, a_plain ? k : m);
  layout(&layout_b_, CUDA_R_16BF, b_plain ? k : n, b_plain ? n : k);
  layout(&layout_d_, fp32_out ? CUDA_R_32F : CUDA_R_16BF, m, n);
  cublasLtMatmulPreference_t preference;
  Check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  Check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes), "workspace");
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  Check(cublasLtMatmulAlgoGetHeuristic(Lt().handle, desc_, layout_a_, layout_b_, layout_d_, layout_d_, preference, 8, found, &count), "heuristic");
  Check(cublasLtMatmulPreferenceDestroy(preference), "preference");
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  std::vector<std::vector<float>> times(static_cast<std::size_t>(count));
  for (int round = 0; round < 7; ++round) {
    for (int i = 0; i < count; ++i) {
      Check(cudaEventRecord(begin), "event");
      RunWith(found[i].algo);
      Check(cudaEventRecord(end), "event");
      Check(cudaEventSynchronize(end), "product");
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, begin, end), "time");
      if (round > 0) times[static_cast<std::size_t>(i)].push_back(ms);
    }
  }
  std::size_t best = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    if (times[i][times[i].size() / 2] < times[best][times[best].size() / 2]) best = i;
  }
  algorithm_ = found[best].algo;
  Check(cudaEventDestroy(begin), "event");
  Check(cudaEventDestroy(end), "event");
}

void PlainProduct::Run() const { RunWith(algorithm_); }

void PlainProduct::RunWith(const cublasLtMatmulAlgo_t& algorithm) const {
  const float alpha = 1.f, beta = 0.f;
  Check(cublasLtMatmul(Lt().handle, desc_, &alpha, a_, layout_a_, b_, layout_b_, &beta, d_, layout_d_, d_, layout_d_, &algorithm, Lt().workspace, kWorkspaceBytes, nullptr),
        "product");
}

}  // namespace lossgauge
