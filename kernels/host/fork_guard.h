// Tells a process from its forked children without a system call: a page that the kernel fills with zeros in every child,
// however it was forked (MADV_WIPEONFORK, Linux 4.14). Older kernels fall back to comparing process ids.
#ifndef LOSSGAUGE_KERNELS_HOST_FORK_GUARD_H_
#define LOSSGAUGE_KERNELS_HOST_FORK_GUARD_H_

#include <sys/types.h>

#include <cstdint>

namespace lossgauge {

class ForkGuard {
 public:
  ForkGuard() noexcept;
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // True in the process that made the guard, false in its children.
  bool InOwnProcess() const noexcept { return page_ != nullptr ? *page_ != 0 : SamePid(); }

 private:
  bool SamePid() const noexcept;

  volatile std::uint64_t* page_ = nullptr;
  pid_t pid_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_FORK_GUARD_H_
