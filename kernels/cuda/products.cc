#include "kernels/cuda/products.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <tuple>
#include <vector>

#include "kernels/cuda/candidate_times.h"
#include "kernels/cuda/cublas_lt.h"

namespace lossgauge::cuda {
namespace {

cudaDataType_t TypeOf(int dtype) { return dtype == 1 ? CUDA_R_16BF : dtype == 2 ? CUDA_R_16F : CUDA_R_32F; }

// Largest power of two up to 256 that the address is a multiple of.
std::uint32_t AlignmentOf(const void* pointer) {
  const auto at = reinterpret_cast<std::uintptr_t>(pointer);
  return at == 0 ? 256 : static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, at & (~at + 1)));
}

// A product in cuBLASLt's terms, column-major: D [m, n] = op(A) op(B) + beta D.
struct Matmul {
  cublasOperation_t op_a, op_b;
  std::int64_t m, n, k, stride_a, stride_b, stride_d;
  const void *a, *b, *bias;
  void* d;
  int dtype, out_dtype;
  bool add;

  // All that the choice of an algorithm depends on, rows first where they are.
  using Key = std::array<std::int64_t, 16>;
  Key KeyOf(Product product) const {
    return {static_cast<std::int64_t>(product), dtype,        out_dtype,      bias != nullptr, add,           m * (product != Product::kGradWeight), stride_a,
            stride_b,                           stride_d,     AlignmentOf(a), AlignmentOf(b),  AlignmentOf(d), AlignmentOf(bias),
            product == Product::kGradWeight ? n : k, product == Product::kGradWeight ? m : 0, Rows(product)};
  }
  std::int64_t Rows(Product product) const { return product == Product::kGradWeight ? k : n; }
};

Matmul MatmulOf(const ProductShape& s, const ProductOperands& o) {
  Matmul x{};
  x.dtype = s.dtype;
  x.out_dtype = s.dtype;
  switch (s.product) {
    case Product::kLogits:
      x = {CUBLAS_OP_T, CUBLAS_OP_N, s.columns, s.rows, s.width, s.weight_stride, s.hidden_stride, s.logits_stride, o.weight, o.hidden, s.bias ? o.bias : nullptr,
           o.logits, s.dtype, s.dtype, false};
      break;
    case Product::kGradWeight:
      x = {CUBLAS_OP_N, CUBLAS_OP_T, s.width, s.columns, s.rows, s.hidden_stride, s.logits_stride, s.grad_weight_stride, o.hidden, o.logits, nullptr,
           o.grad_weight, s.dtype, s.out_dtype, s.add};
      break;
    case Product::kGradHidden:
      x = {CUBLAS_OP_N, CUBLAS_OP_N, s.width, s.rows, s.columns, s.weight_stride, s.logits_stride, s.hidden_stride, o.weight, o.logits, nullptr,
           o.grad_hidden, s.dtype, s.dtype, false};
      break;
  }
  return x;
}

// Descriptions of one product; freed together.
class Description {
 public:
  Description(const CublasLt& lt, const Matmul& x) : lt_(lt) {
    Note(lt.MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Set(CUBLASLT_MATMUL_DESC_TRANSA, x.op_a);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, x.op_b);
    if (x.bias != nullptr) {
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
      Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(x.dtype));
    }
    const bool a_plain = x.op_a == CUBLAS_OP_N, b_plain = x.op_b == CUBLAS_OP_N;
    Layout(&a, TypeOf(x.dtype), a_plain ? x.m : x.k, a_plain ? x.k : x.m, x.stride_a);
    Layout(&b, TypeOf(x.dtype), b_plain ? x.k : x.n, b_plain ? x.n : x.k, x.stride_b);
    Layout(&d, TypeOf(x.out_dtype), x.m, x.n, x.stride_d);
  }
  ~Description() {
    if (d != nullptr) (void)lt_.MatrixLayoutDestroy(d);
    if (b != nullptr) (void)lt_.MatrixLayoutDestroy(b);
    if (a != nullptr) (void)lt_.MatrixLayoutDestroy(a);
    if (desc != nullptr) (void)lt_.MatmulDescDestroy(desc);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  cublasStatus_t status() const { return status_; }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;

 private:
  void Note(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = status;
  }
  template <class T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    if (desc != nullptr) Note(lt_.MatmulDescSetAttribute(desc, attribute, &value, sizeof value));
  }
  void Layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    Note(lt_.MatrixLayoutCreate(layout, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), stride));
  }

  const CublasLt& lt_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

constexpr int kMostCandidates = 8;

// cuBLASLt's candidates for a product, its first choice first.
cublasStatus_t Candidates(const CublasLt& lt, const Matmul& x, const Description& of, std::vector<cublasLtMatmulHeuristicResult_t>* found, int most) {
  found->resize(static_cast<std::size_t>(most));
  cublasLtMatmulPreference_t preference = nullptr;
  cublasStatus_t status = lt.MatmulPreferenceCreate(&preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS) status = lt.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspaceBytes);
  // Where the inner dimension is split, parts are added in fp32: the other ways round them to the output's dtype in between.
  if (x.out_dtype != 0) set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(x.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(x.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(x.d));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(x.d));
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = lt.MatmulAlgoGetHeuristic(lt.handle, of.desc, of.a, of.b, of.d, of.d, preference, most, found->data(), &count);
  }
  (void)lt.MatmulPreferenceDestroy(preference);
  found->resize(static_cast<std::size_t>(count));
  found->erase(std::remove_if(found->begin(), found->end(), [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; }), found->end());
  return status == CUBLAS_STATUS_SUCCESS && found->empty() ? CUBLAS_STATUS_NOT_SUPPORTED : status;
}

cublasStatus_t Run(const CublasLt& lt, const Matmul& x, const Description& of, const cublasLtMatmulAlgo_t& algorithm, void* workspace, cudaStream_t stream) {
  const float alpha = 1.f, beta = x.add ? 1.f : 0.f;
  return lt.Matmul(lt.handle, of.desc, &alpha, x.a, of.a, x.b, of.b, &beta, x.d, of.d, x.d, of.d, &algorithm, workspace, kProductWorkspaceBytes, stream);
}

// Of calls whose launches are under way already, when an exception would leave half of them unreported.
template <class F>
int WithoutThrowing(const F& call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
}

class Event {
 public:
  Event() { (void)cudaEventCreate(&event_); }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct Products::Impl {
  struct Choice {
    cublasLtMatmulAlgo_t algorithm;
    bool tuned;
  };
  const CublasLt* lt;
  std::mutex mutex;
  std::map<Matmul::Key, Choice> choices;  // rows are the key's last word, so that neighbours differ in them alone

  bool IsTuned(const Matmul::Key& key) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto it = choices.find(key);
    return it != choices.end() && it->second.tuned;
  }

  // The tuned choice for the nearest number of rows that takes this one too.
  bool NearestTuned(const Matmul::Key& key, const Description& of, cublasLtMatmulAlgo_t* algorithm) {
    std::int64_t nearest = -1;
    Matmul::Key low = key;
    low.back() = 0;
    for (auto it = choices.lower_bound(low); it != choices.end() && std::equal(key.begin(), key.end() - 1, it->first.begin()); ++it) {
      const std::int64_t distance = std::abs(it->first.back() - key.back());
      if (!it->second.tuned || (nearest >= 0 && distance >= nearest)) continue;
      cublasLtMatmulHeuristicResult_t result{};
      if (lt->MatmulAlgoCheck(lt->handle, of.desc, of.a, of.b, of.d, of.d, &it->second.algorithm, &result) != CUBLAS_STATUS_SUCCESS) continue;
      if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kProductWorkspaceBytes) continue;
      nearest = distance;
      *algorithm = it->second.algorithm;
    }
    return nearest >= 0;
  }

  cublasStatus_t Choose(Product product, const Matmul& x, const Description& of, cublasLtMatmulAlgo_t* algorithm) {
    const Matmul::Key key = x.KeyOf(product);
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = choices.find(key); it != choices.end()) {
      *algorithm = it->second.algorithm;
      return CUBLAS_STATUS_SUCCESS;
    }
    if (!NearestTuned(key, of, algorithm)) {
      std::vector<cublasLtMatmulHeuristicResult_t> found;
      if (const cublasStatus_t status = Candidates(*lt, x, of, &found, 1); status != CUBLAS_STATUS_SUCCESS) return status;
      *algorithm = found[0].algo;
    }
    // The number of unmasked rows may be another at every step: what is remembered is bounded.
    constexpr std::size_t kMostChoices = 4096;
    if (choices.size() < kMostChoices) choices[key] = {*algorithm, false};
    return CUBLAS_STATUS_SUCCESS;
  }

  cublasStatus_t Tune(const ProductShape& shape, const ProductOperands& operands, void* workspace, cudaStream_t stream) {
    const Matmul x = MatmulOf(shape, operands);
    const Matmul::Key key = x.KeyOf(shape.product);
    if (IsTuned(key)) return CUBLAS_STATUS_SUCCESS;  // another choice would change bits in the middle of a run
    const Description description(*lt, x);
    if (description.status() != CUBLAS_STATUS_SUCCESS) return description.status();
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    if (const cublasStatus_t status = Candidates(*lt, x, description, &found, kMostCandidates); status != CUBLAS_STATUS_SUCCESS) return status;
    // In turn and back again, so that every candidate sees the same clocks and other neighbours; the first round only brings the card to the clocks that it
    // holds under load. After two more, those far behind are out; the others need more rounds to be told apart.
    constexpr int kRounds = 11, kFirstRounds = 3;
    const Event begin, end;
    CandidateTimes times(found.size());
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t turn = 0; turn < found.size(); ++turn) {
        const std::size_t i = round % 2 == 0 ? turn : found.size() - 1 - turn;
        if (!times.IsUsable(i)) continue;
        (void)cudaEventRecord(begin, stream);
        if (Run(*lt, x, description, found[i].algo, workspace, stream) != CUBLAS_STATUS_SUCCESS) times.LeaveOut(i);
        (void)cudaEventRecord(end, stream);
        float ms = 0;
        if (cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
        if (round > 0) times.Add(i, ms);
      }
      if (round + 1 == kFirstRounds) times.LeaveOutSlow();
    }
    const int choice = times.Choice();
    if (choice < 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    std::lock_guard<std::mutex> lock(mutex);
    const auto untuned = [](const auto& each) { return !each.second.tuned; };
    std::erase_if(choices, untuned);  // their numbers of rows may have a tuned neighbour now
    choices[key] = {found[static_cast<std::size_t>(choice)].algo, true};
    return CUBLAS_STATUS_SUCCESS;
  }
};

Products* Products::Get(int ordinal, const char** why) {
  static std::mutex mutex;
  static std::map<int, Products*> made;
  std::lock_guard<std::mutex> lock(mutex);
  const CublasLt* lt = CublasLt::Get(ordinal, why);
  if (lt == nullptr) return nullptr;
  Products*& products = made[ordinal];
  if (products == nullptr) {
    auto* const impl = new Impl();
    impl->lt = lt;
    products = new Products(impl);
  }
  return products;
}

int Products::Choose(const ProductShape& shape, const ProductOperands& operands) noexcept {
  return WithoutThrowing([&] {
    const Matmul x = MatmulOf(shape, operands);
    const Description description(*impl_->lt, x);
    cublasLtMatmulAlgo_t algorithm;
    return description.status() != CUBLAS_STATUS_SUCCESS ? description.status() : impl_->Choose(shape.product, x, description, &algorithm);
  });
}

int Products::Multiply(const ProductShape& shape, const ProductOperands& operands, void* workspace, cudaStream_t stream) noexcept {
  return WithoutThrowing([&] {
    const Matmul x = MatmulOf(shape, operands);
    const Description description(*impl_->lt, x);
    if (description.status() != CUBLAS_STATUS_SUCCESS) return description.status();
    cublasLtMatmulAlgo_t algorithm;
    if (const cublasStatus_t status = impl_->Choose(shape.product, x, description, &algorithm); status != CUBLAS_STATUS_SUCCESS) return status;
    return Run(*impl_->lt, x, description, algorithm, workspace, stream);
  });
}

int Products::Tune(const ProductShape& shape, const ProductOperands& operands, void* workspace, cudaStream_t stream) noexcept {
  return WithoutThrowing([&] { return impl_->Tune(shape, operands, workspace, stream); });
}

const char* ProductErrorName(int status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "a cuBLASLt error";
  }
}

bool IsOutOfMemory(int status) { return status == CUBLAS_STATUS_ALLOC_FAILED; }

}  // namespace lossgauge::cuda
