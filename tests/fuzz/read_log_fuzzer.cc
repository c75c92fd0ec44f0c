// Whatever the bytes of a log are, every reader ends, in bounded memory, and what it hands over keeps its promises.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/replay/read_log.h"

namespace {

using lossgauge::replay::LogEvaluation;
using lossgauge::replay::LogPoint;

void Check(bool promise) {
  if (!promise) std::abort();
}

class CheckingSink final : public lossgauge::replay::LogSink {
 public:
  void OnPoint(const LogPoint& point) override {
    Check(point.index == points_);
    Check(point.step >= 0 && point.interval_steps >= 1 && point.attempt >= 1 && point.line >= 1);
    Check(points_ == 0 || point.attempt > last_.attempt || (point.attempt == last_.attempt && point.step > last_.step));
    last_ = point;
    ++points_;
  }
  void OnEvaluation(const LogEvaluation& evaluation) override { Check(evaluation.loss_nats == evaluation.loss_nats); }
  std::uint64_t points() const { return points_; }

 private:
  LogPoint last_;
  std::uint64_t points_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto source = lossgauge::replay::MakeMemorySource(bytes);
  CheckingSink sink;
  const auto report = lossgauge::replay::ReadLog(source.get(), &sink);
  if (report.ok()) Check(report->points == sink.points());
  return 0;
}
