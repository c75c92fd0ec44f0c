#include "kernels/cuda/cublas_lt.h"

#include <array>
#include <mutex>

#include "kernels/cuda/shared_functions.h"

namespace lossgauge::cuda {
namespace {

// The job's own copy comes first: a framework has usually loaded one, under the same name, and two would be two sets of algorithms in memory.
#define LG_STRING_OF(x) #x
#define LG_VERSIONED(major) "libcublasLt.so." LG_STRING_OF(major)
constexpr const char* kLibrary = LG_VERSIONED(CUBLAS_VER_MAJOR);

bool FindAll(const SharedFunctions& from, CublasLt* t) {
  return from.Find("cublasLtCreate", &t->Create) && from.Find("cublasLtMatmul", &t->Matmul) &&
         from.Find("cublasLtMatmulAlgoCheck", &t->MatmulAlgoCheck) && from.Find("cublasLtMatmulAlgoGetHeuristic", &t->MatmulAlgoGetHeuristic) &&
         from.Find("cublasLtMatmulDescCreate", &t->MatmulDescCreate) && from.Find("cublasLtMatmulDescDestroy", &t->MatmulDescDestroy) &&
         from.Find("cublasLtMatmulDescSetAttribute", &t->MatmulDescSetAttribute) &&
         from.Find("cublasLtMatmulPreferenceCreate", &t->MatmulPreferenceCreate) &&
         from.Find("cublasLtMatmulPreferenceDestroy", &t->MatmulPreferenceDestroy) &&
         from.Find("cublasLtMatmulPreferenceSetAttribute", &t->MatmulPreferenceSetAttribute) &&
         from.Find("cublasLtMatrixLayoutCreate", &t->MatrixLayoutCreate) && from.Find("cublasLtMatrixLayoutDestroy", &t->MatrixLayoutDestroy);
}

}  // namespace

const CublasLt* CublasLt::Get(int ordinal, const char** why) {
  static std::mutex mutex;
  static std::array<CublasLt*, 64> of_devices{};
  std::lock_guard<std::mutex> lock(mutex);
  static const auto& loaded = *new LoadedTable<CublasLt>(kLibrary, "cublasLt.h", FindAll);
  *why = loaded.why.c_str();
  if (!loaded.why.empty()) return nullptr;
  if (ordinal < 0 || ordinal >= static_cast<int>(of_devices.size())) {
    *why = "no such device";
    return nullptr;
  }
  CublasLt*& made = of_devices[static_cast<std::size_t>(ordinal)];
  if (made != nullptr) return made;
  CublasLt table = loaded.table;
  if (table.Create(&table.handle) != CUBLAS_STATUS_SUCCESS) {
    *why = "cublasLtCreate failed";
    return nullptr;
  }
  return made = new CublasLt(table);  // for good, like the device itself
}

}  // namespace lossgauge::cuda
