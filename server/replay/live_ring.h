// Feeds a log to a running lossgauged: the ring files of a training job, written by hand. lossgauged cannot tell it from a job that publishes a step
// for each point, a fixed number of them a second. Evaluations and checkpoints that stand close together hold it up: a ring of events is small.
//
// What a ring cannot carry is lost: times of steps are those of the feeding, so nothing is said of slow steps; and a point's record stands for one
// step, whatever it is a mean over (the detectors see how far apart steps are, as they do in a job). Each attempt of the log is a segment of its own.
#ifndef LOSSGAUGE_SERVER_REPLAY_LIVE_RING_H_
#define LOSSGAUGE_SERVER_REPLAY_LIVE_RING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/replay/attempt_names.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

struct LiveRingOptions {
  std::string directory;  // one that lossgauged drains; must exist
  std::string run;        // at most 200 bytes count
  double points_per_second = 50;
  // Waits so many nanoseconds; replaced in tests.
  std::function<void(std::int64_t)> sleep;
};

inline constexpr double kMostPointsPerSecond = 200;  // a ring holds 512, and lossgauged may need a second to see that there is a new one

class LiveRing final : public LogSink {
 public:
  explicit LiveRing(LiveRingOptions options);
  ~LiveRing() override;

  void OnPoint(const LogPoint& point) override;
  void OnEvaluation(const LogEvaluation& evaluation) override;
  void OnCheckpoint(const LogCheckpoint& checkpoint) override;
  void OnJobEvent(const LogJobEvent& event) override;
  bool WantsMore() const override { return status_.ok(); }
  // The end: a clean one, unless the log said that the job failed. The files stay for lossgauged to drain.
  void Finish();

  // What kept it from feeding, with the path; from then on nothing is fed.
  const absl::Status& status() const { return status_; }
  std::uint64_t published() const { return published_; }

 private:
  class Segment;
  void BeginAttempt(const LogPoint& point);
  void Wait(std::int64_t nanoseconds);
  void PaceEvent();

  const LiveRingOptions options_;
  const std::int64_t start_wall_ns_;
  std::unique_ptr<Segment> segment_;
  std::uint32_t attempt_ = 0;
  std::optional<LogJobEvent> resume_;   // of the attempt that is about to begin
  std::optional<LogJobEvent> failure_;  // of the present one
  AttemptNames attempt_names_;
  std::int64_t event_credit_ns_ = 0;  // time that no event has used up yet
  std::uint64_t published_ = 0;
  absl::Status status_;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_LIVE_RING_H_
