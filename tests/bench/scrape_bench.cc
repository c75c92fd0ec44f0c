// How long a scrape takes: one page of 64 ranks must be rendered in under 20 ms at the 99th percentile.
//
//   scrape_bench [pages]      prints one line a size: ranks, series, bytes, p50, p99, max, and p99 of CPU time
//
// The CPU column is the thread's own time: where it is far below p99, the machine was busy and the figure says so.
// Exit code 1 if 64 ranks miss the limit. The snapshot is full: every optional value is present, every rank has maxima and totals.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "server/export/metrics_page.h"
#include "tests/server/export/snapshot_fixture.h"

namespace {

using lossgauge::export_::MetricsPage;

constexpr double kLimitMs = 20;
constexpr std::uint32_t kJudgedRanks = 64;

double At(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(share * static_cast<double>(sorted.size())))];
}

double ThreadCpuMs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

double Measure(std::uint32_t ranks, int pages) {
  const auto snapshot = lossgauge::export_::Shot({lossgauge::export_::RunOf("bench", ranks)});
  MetricsPage page;
  std::vector<double> ms;
  std::vector<double> cpu_ms;
  std::size_t bytes = 0;
  std::size_t lines = 0;
  for (int i = -3; i < pages; ++i) {
    const double cpu_begin = ThreadCpuMs();
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = page.Render(snapshot);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i < 0) continue;  // warm-up
    ms.push_back(took.count());
    cpu_ms.push_back(ThreadCpuMs() - cpu_begin);
    bytes = text.size();
    if (i == 0) lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  std::sort(ms.begin(), ms.end());
  std::sort(cpu_ms.begin(), cpu_ms.end());
  std::printf("%6u ranks %7zu lines %9zu bytes   p50 %7.3f ms   p99 %7.3f ms   max %7.3f ms   CPU p99 %7.3f ms\n", ranks, lines, bytes,
              At(ms, 0.5), At(ms, 0.99), ms.back(), At(cpu_ms, 0.99));
  return At(ms, 0.99);
}

}  // namespace

int main(int argc, char** argv) {
  const int pages = argc > 1 ? std::max(1, std::atoi(argv[1])) : 500;
  Measure(8, pages);
  const double judged = Measure(kJudgedRanks, pages);
  Measure(500, std::max(1, pages / 5));
  Measure(1024, pages);  // above the bound: run-level series alone
  if (judged > kLimitMs) {
    std::printf("FAILED: p99 of %u ranks is above %.0f ms\n", kJudgedRanks, kLimitMs);
    return 1;
  }
  return 0;
}
