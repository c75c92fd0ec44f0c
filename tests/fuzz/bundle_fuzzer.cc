// Whatever an archive holds, reading it as a bundle ends, in bounded memory, and its points keep the promises of a log's.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/replay/bundle.h"

namespace {

using lossgauge::replay::LogEvaluation;
using lossgauge::replay::LogPoint;

void Check(bool promise) {
  if (!promise) std::abort();
}

class CheckingSink final : public lossgauge::replay::LogSink {
 public:
  void OnPoint(const LogPoint& point) override {
    Check(point.index == points_++);
    Check(point.step >= 0 && point.interval_steps >= 1 && point.attempt >= 1 && point.line >= 1);
    Check(point.attempt > last_.attempt || points_ == 1 || point.step > last_.step);
    last_ = point;
  }
  void OnEvaluation(const LogEvaluation& evaluation) override { Check(std::isfinite(evaluation.loss_nats)); }
  std::uint64_t points() const { return points_; }

 private:
  LogPoint last_;
  std::uint64_t points_ = 0;
};

}  // namespace

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
