// Functions of a shared library that is loaded when first needed.
#ifndef LOSSGAUGE_KERNELS_CUDA_SHARED_FUNCTIONS_H_
#define LOSSGAUGE_KERNELS_CUDA_SHARED_FUNCTIONS_H_

#include <dlfcn.h>

#include <string>

namespace lossgauge::cuda {

// The job's own copy comes first: a framework has usually loaded one, under the same name.
class SharedFunctions {
 public:
  explicit SharedFunctions(const char* name)
      : library_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {  // never closed: its kernels may be on their way at exit
    if (library_ != nullptr) return;
    const char* error = ::dlerror();
    why_ = error != nullptr ? error : name;
  }
  bool loaded() const { return library_ != nullptr; }
  // Why it could not be loaded; empty = it is.
  const std::string& why() const { return why_; }
  // False: it has no such function.
  template <class F>
  bool Find(const char* name, F* function) const {
    *function = reinterpret_cast<F>(::dlsym(library_, name));
    return *function != nullptr;
  }

 private:
  void* library_;
  std::string why_;
};

// A structure of pointers to them.
template <class Table>
struct LoadedTable {
  Table table{};
  std::string why;  // empty = all there

  // fill(library, &table): false if a function is missing; `lacks` says of what.
  template <class Fill>
  LoadedTable(const char* name, const char* lacks, const Fill& fill) {
    const SharedFunctions library(name);
    if (!library.loaded()) why = library.why();
    else if (!fill(library, &table)) why = std::string(name) + " lacks a function of " + lacks;
  }
};

}  // namespace lossgauge::cuda

#endif  // LOSSGAUGE_KERNELS_CUDA_SHARED_FUNCTIONS_H_
