#include "server/ingest/bus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

namespace lossgauge::ingest {
namespace {

struct Entry {
  std::atomic<std::uintptr_t> begin{0};  // 0 = free
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> broken{false};
};

constexpr std::size_t kEntries = 8192;
std::array<Entry, kEntries> g_entries;
std::atomic<std::size_t> g_used{0};  // entries at and beyond were never used
std::atomic<std::uint64_t> g_faults{0};
std::uintptr_t g_page_bytes = 4096;
struct sigaction g_previous;

void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const std::size_t used = g_used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < used; ++i) {
    Entry& entry = g_entries[i];
    const std::uintptr_t begin = entry.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= entry.end.load(std::memory_order_acquire)) continue;
    entry.broken.store(true, std::memory_order_relaxed);
    g_faults.fetch_add(1, std::memory_order_relaxed);
    void* page = reinterpret_cast<void*>(address & ~(g_page_bytes - 1));
    if (mmap(page, g_page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
      errno = saved_errno;
      return;
    }
    break;
  }
  if ((g_previous.sa_flags & SA_SIGINFO) != 0 && g_previous.sa_sigaction != nullptr) {
    g_previous.sa_sigaction(signal, info, context);
    return;
  }
  ::signal(signal, SIG_DFL);  // the access is repeated, and ends the process as it would have without us
}

void InstallHandlerOnce() {
  static const bool installed = [] {
    g_page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &g_previous) == 0;
  }();
  (void)installed;
}

}  // namespace

bool GuardedMapping::Map(int fd, std::size_t bytes) {
  Reset();
  InstallHandlerOnce();
  std::size_t index = 0;
  while (index < kEntries && g_entries[index].begin.load(std::memory_order_relaxed) != 0) ++index;
  if (index == kEntries) {
    errno = ENOSPC;
    return false;
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return false;
  (void)madvise(data, bytes, MADV_DONTDUMP);
  Entry& entry = g_entries[index];
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t whole_pages = (bytes + g_page_bytes - 1) & ~(g_page_bytes - 1);
  entry.broken.store(false, std::memory_order_relaxed);
  entry.end.store(begin + whole_pages, std::memory_order_relaxed);
  entry.begin.store(begin, std::memory_order_release);  // publishes end
  if (index >= g_used.load(std::memory_order_relaxed)) g_used.store(index + 1, std::memory_order_release);
  data_ = data;
  bytes_ = bytes;
  entry_ = index;
  return true;
}

void GuardedMapping::Reset() {
  if (data_ == nullptr) return;
  g_entries[entry_].begin.store(0, std::memory_order_release);
  munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

bool GuardedMapping::broken() const { return data_ != nullptr && g_entries[entry_].broken.load(std::memory_order_relaxed); }

std::uint64_t BusFaultsCaught() { return g_faults.load(std::memory_order_relaxed); }

}  // namespace lossgauge::ingest
