// Several files as the logs of one run, one after the other. A file that goes on behind the step where the last one ended belongs to the same attempt
// (a log that was rotated); one that begins before it begins another.
#ifndef LOSSGAUGE_SERVER_REPLAY_JOINED_FILES_H_
#define LOSSGAUGE_SERVER_REPLAY_JOINED_FILES_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "server/replay/log_point.h"

namespace lossgauge::replay {

class JoinedFiles final : public LogSink {
 public:
  explicit JoinedFiles(LogSink* sink) : sink_(sink) {}  // which outlives it

  void BeginFile() { offset_.reset(); }
  void OnPoint(const LogPoint& point) override {
    if (!offset_) {
      const bool goes_on = last_ && point.step > last_->step && point.attempt_name == last_->attempt_name;
      offset_ = !last_ ? 0 : last_->attempt - (goes_on ? 1 : 0);
    }
    LogPoint joined = point;
    joined.attempt += *offset_;
    joined.index = next_index_++;
    sink_->OnPoint(joined);
    last_ = std::move(joined);
  }
  void OnEvaluation(const LogEvaluation& evaluation) override { sink_->OnEvaluation(evaluation); }
  void OnCheckpoint(const LogCheckpoint& checkpoint) override { sink_->OnCheckpoint(checkpoint); }
  void OnJobEvent(const LogJobEvent& event) override { sink_->OnJobEvent(event); }
  bool WantsMore() const override { return sink_->WantsMore(); }
  std::uint64_t points() const { return next_index_; }  // of all files, so far

 private:
  LogSink* const sink_;
  std::optional<std::uint32_t> offset_;  // of this file's attempts; unknown before its first point
  std::optional<LogPoint> last_;
  std::uint64_t next_index_ = 0;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_JOINED_FILES_H_
