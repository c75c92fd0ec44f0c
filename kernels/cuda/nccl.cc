#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

#include <string>

#include "kernels/host/error.h"

namespace lossgauge::cuda {
namespace {

// A communicator belongs to the copy that made it: the job's own, which a framework has usually loaded under this name.
constexpr const char* kLibrary = "libnccl.so.2";

template <class F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(::dlsym(library, name));
  return *function != nullptr;
}

struct Loaded {
  Nccl table{};
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
  Nccl& t = loaded.table;
  const bool all = Find(library, "ncclGetUniqueId", &t.GetUniqueId) && Find(library, "ncclCommInitRank", &t.CommInitRank) &&
                   Find(library, "ncclCommDestroy", &t.CommDestroy) && Find(library, "ncclCommCount", &t.CommCount) &&
                   Find(library, "ncclCommUserRank", &t.CommUserRank) && Find(library, "ncclCommCuDevice", &t.CommCuDevice) &&
                   Find(library, "ncclCommGetAsyncError", &t.CommGetAsyncError) && Find(library, "ncclAllGather", &t.AllGather) &&
                   Find(library, "ncclGetErrorString", &t.GetErrorString);
  if (!all) loaded.why = std::string(kLibrary) + " lacks a function of NCCL 2.4";
  return loaded;
}

}  // namespace

const Nccl* Nccl::Get(const char* function) {
  static const Loaded& loaded = *new Loaded(Load());
  if (loaded.why.empty()) return &loaded.table;
  lossgauge::SetError(LG_UNAVAILABLE, "%s: NCCL: expected a libnccl.so.2 that the process has loaded or its loader finds: %s", function, loaded.why.c_str());
  return nullptr;
}

int Nccl::SetError(int error, const char* function, const char* what) const {
  return lossgauge::SetError(LG_UNAVAILABLE, "%s: %s: %s", function, what, GetErrorString(error));
}

}  // namespace lossgauge::cuda
