// Rows over threads. Threads are made for one call and joined before it
// returns: nothing lives on between calls, so a fork is harmless and the
// library can be unloaded.
#ifndef LOSSGAUGE_KERNELS_CPU_PARALLEL_H_
#define LOSSGAUGE_KERNELS_CPU_PARALLEL_H_

#include <cstdint>

namespace lossgauge::cpu {

// Most threads of one call.
inline constexpr int kMostThreads = 256;

// Threads for a call over rows * columns elements: what was asked for (0 = the
// cores this process may run on), but no thread for less work than starting it
// costs.
int ThreadsFor(int asked, std::int64_t rows, std::int64_t columns) noexcept;

// Calls work(context, thread, begin, end) until all rows of [0, rows) are done,
// thread in [0, threads), each range once, several ranges a thread. Threads
// that cannot be started are done without; `work` must not throw.
void ForRows(int threads, std::int64_t rows, std::int64_t columns, void* context,
             void (*work)(void* context, int thread, std::int64_t begin, std::int64_t end)) noexcept;

}  // namespace lossgauge::cpu

#endif  // LOSSGAUGE_KERNELS_CPU_PARALLEL_H_
