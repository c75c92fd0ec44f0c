#include "kernels/cuda/nccl.h"

#include "kernels/cuda/shared_functions.h"
#include "kernels/host/error.h"

namespace lossgauge::cuda {
namespace {

// A communicator belongs to the copy that made it: the job's own, which a framework has usually loaded under this name.
constexpr const char* kLibrary = "libnccl.so.2";

bool FindAll(const SharedFunctions& from, Nccl* t) {
  return from.Find("ncclGetUniqueId", &t->GetUniqueId) && from.Find("ncclCommInitRank", &t->CommInitRank) &&
         from.Find("ncclCommDestroy", &t->CommDestroy) && from.Find("ncclCommCount", &t->CommCount) &&
         from.Find("ncclCommUserRank", &t->CommUserRank) && from.Find("ncclCommCuDevice", &t->CommCuDevice) &&
         from.Find("ncclCommGetAsyncError", &t->CommGetAsyncError) && from.Find("ncclAllGather", &t->AllGather) &&
         from.Find("ncclAllReduce", &t->AllReduce) &&
         from.Find("ncclGetErrorString", &t->GetErrorString);
}

}  // namespace

const Nccl* Nccl::Get(const char* function) {
  static const auto& loaded = *new LoadedTable<Nccl>(kLibrary, "NCCL 2.10", FindAll);
  if (loaded.why.empty()) return &loaded.table;
  lossgauge::SetError(LG_UNAVAILABLE, "%s: NCCL: expected a libnccl.so.2 that the process has loaded or its loader finds: %s", function, loaded.why.c_str());
  return nullptr;
}

int Nccl::SetError(int error, const char* function, const char* what) const {
  return lossgauge::SetError(LG_UNAVAILABLE, "%s: %s: %s", function, what, GetErrorString(error));
}

}  // namespace lossgauge::cuda
