// Where steps can be sent. A sink knows the protocol; when to send what, and what to do about an answer, is StepShipper's.
#ifndef LOSSGAUGE_SERVER_EXPORT_STEP_SINK_H_
#define LOSSGAUGE_SERVER_EXPORT_STEP_SINK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/export/step_samples.h"
#include "server/state/service_counters.h"

namespace lossgauge::export_ {

struct SinkAnswer {
  state::ShipResult result = state::ShipResult::kUnreachable;
  state::ShipDrop reason = state::ShipDrop::kRefused;  // of kRefused
  std::int64_t retry_after_ns = 0;                     // of kBusy: what the receiver asked for; 0: nothing
  std::uint64_t samples = 0;                           // that were in the request
  std::string text;                                    // for the log: what was said, or went wrong; printable, short
};

class StepSink {
 public:
  virtual ~StepSink() = default;
  // Waits for the answer, within the sink's own time limits. `run`: valid UTF-8, not empty.
  virtual SinkAnswer Send(std::string_view run, const std::vector<TimedStep>& steps) = 0;
  // From another thread: ends a Send under way soon, and lets none begin.
  virtual void Cancel() = 0;
  // For logs and as the key of what was sent: where it sends to, without secrets.
  virtual std::string name() const = 0;
};

// What stands behind every sample: name and value, by name; "run" and "__name__" are not in it.
using SinkLabels = std::vector<std::pair<std::string, std::string>>;

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_STEP_SINK_H_
