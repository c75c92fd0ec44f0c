#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <string>

namespace lossgauge::cuda {
namespace {

// The job's own copy comes first: a framework has usually loaded one, under the same name, and two would be two sets of algorithms in memory.
#define LG_STRING_OF(x) #x
#define LG_VERSIONED(major) "libcublasLt.so." LG_STRING_OF(major)
constexpr const char* kLibrary = LG_VERSIONED(CUBLAS_VER_MAJOR);

template <class F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(::dlsym(library, name));
  return *function != nullptr;
}

struct Loaded {
  CublasLt table{};
  std::string why;  // empty = all there
};

Loaded Load() {
  Loaded loaded;
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // never closed: its kernels may be on their way at exit
  if (library == nullptr) {
    const char* error = ::dlerror();
    loaded.why = error != nullptr ? error : kLibrary;
    return loaded;
  }
  CublasLt& t = loaded.table;
  const bool all = Find(library, "cublasLtCreate", &t.Create) && Find(library, "cublasLtMatmul", &t.Matmul) &&
                   Find(library, "cublasLtMatmulAlgoCheck", &t.MatmulAlgoCheck) && Find(library, "cublasLtMatmulAlgoGetHeuristic", &t.MatmulAlgoGetHeuristic) &&
                   Find(library, "cublasLtMatmulDescCreate", &t.MatmulDescCreate) && Find(library, "cublasLtMatmulDescDestroy", &t.MatmulDescDestroy) &&
                   Find(library, "cublasLtMatmulDescSetAttribute", &t.MatmulDescSetAttribute) &&
                   Find(library, "cublasLtMatmulPreferenceCreate", &t.MatmulPreferenceCreate) &&
                   Find(library, "cublasLtMatmulPreferenceDestroy", &t.MatmulPreferenceDestroy) &&
                   Find(library, "cublasLtMatmulPreferenceSetAttribute", &t.MatmulPreferenceSetAttribute) &&
                   Find(library, "cublasLtMatrixLayoutCreate", &t.MatrixLayoutCreate) && Find(library, "cublasLtMatrixLayoutDestroy", &t.MatrixLayoutDestroy);
  if (!all) loaded.why = std::string(kLibrary) + " lacks a function of cublasLt.h";
  return loaded;
}

}  // namespace

const CublasLt* CublasLt::Get(int ordinal, const char** why) {
  static std::mutex mutex;
  static std::array<CublasLt*, 64> of_devices{};
  std::lock_guard<std::mutex> lock(mutex);
  static const Loaded& loaded = *new Loaded(Load());
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
