#include "kernels/cpu/parallel.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <thread>

namespace lossgauge::cpu {
namespace {

constexpr std::int64_t kElementsWorthAThread = 128 * 1024;  // about 100 us of work against 20 us for a thread
constexpr std::int64_t kElementsOfARange = 256 * 1024;

int Cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

int ThreadsFor(int asked, std::int64_t rows, std::int64_t columns) noexcept {
  const std::int64_t wanted = asked > 0 ? asked : Cores();
  const double elements = static_cast<double>(rows) * static_cast<double>(columns);
  const auto worth = static_cast<std::int64_t>(std::min(elements / kElementsWorthAThread, 1e6));
  return static_cast<int>(std::clamp<std::int64_t>(std::min({wanted, worth, rows}), 1, kMostThreads));
}

void ForRows(int threads, std::int64_t rows, std::int64_t columns, void* context,
             void (*work)(void* context, int thread, std::int64_t begin, std::int64_t end)) noexcept {
  const std::int64_t range = std::max<std::int64_t>(1, kElementsOfARange / std::max<std::int64_t>(1, columns));
  if (threads <= 1) return work(context, 0, 0, rows);
  // Ranges are handed out by a ticket: cores differ in speed. Relaxed: the
  // ticket orders nothing but itself, joining publishes the results.
  std::atomic<std::int64_t> next{0};
  const auto take_ranges = [&](int thread) {
    for (;;) {
      const std::int64_t begin = next.fetch_add(range, std::memory_order_relaxed);
      if (begin >= rows) return;
      work(context, thread, begin, std::min(rows, begin + range));
    }
  };
  // The job's signals are for the job's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::array<std::thread, kMostThreads> others;
  int started = 1;
  try {
    for (; started < threads; ++started) others[static_cast<std::size_t>(started)] = std::thread(take_ranges, started);
  } catch (const std::exception&) {
    // No more threads to be had: those that run share the rows.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  take_ranges(0);
  for (int thread = 1; thread < started; ++thread) others[static_cast<std::size_t>(thread)].join();
}

}  // namespace lossgauge::cpu
