// Whatever an archive holds, reading it as a bundle ends, in bounded memory, and its points keep the promises of a log's.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/replay/bundle.h"
#include "tests/fuzz/checking_sink.h"

using lossgauge::replay::Check;
using lossgauge::replay::CheckingSink;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int descriptor = memfd_create("bundle", MFD_CLOEXEC);
  if (descriptor < 0 || write(descriptor, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  (void)lossgauge::replay::IsBundle(path);
  if (const auto policy = lossgauge::replay::ReadBundlePolicy(path); policy.ok()) Check(policy->size() <= 1 << 20);
  CheckingSink sink;
  if (const auto report = lossgauge::replay::ReadBundle(path, &sink); report.ok()) Check(report->points == sink.points());
  close(descriptor);
  return 0;
}
