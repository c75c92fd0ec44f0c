// A log through the same run book, detectors and verdict policy as in lossgauged: what would it have said, and when.
//
// The clock is the log's: it moves by the time of a step where the log tells it, else by a second a point, and begins at the same moment for every
// replay. Behind a hundred years of the log's time, which is as much as absurd times of steps can fill, it moves by a second a point. So the same points give the same results, bit for bit. A log shows no signs of life between its lines: stalls, freezes and lost processes
// are not judged. The end of the log is a clean end, and so is that of each attempt before the last, unless the log says that the job failed.
#ifndef LOSSGAUGE_SERVER_REPLAY_REPLAY_H_
#define LOSSGAUGE_SERVER_REPLAY_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/detect/policy.h"
#include "server/replay/log_point.h"
#include "server/state/incident.h"
#include "server/state/verdict.h"

namespace lossgauge::replay {

struct Moment {  // of the log
  std::uint64_t point = 0;
  std::uint64_t line = 0;
  std::string attempt;
  std::int64_t step = 0;
};

struct VerdictChange {
  Moment at;
  state::Verdict verdict;
};

struct IncidentLife {
  state::Incident incident;  // as it was last
  Moment first;              // when it was reported first ...
  std::optional<Moment> warned;  // ... first above info ...
  std::optional<Moment> critical;
  std::optional<Moment> resolved;
  state::Severity worst = state::Severity::kInfo;
};

struct ReplayResult {
  std::vector<VerdictChange> verdicts;  // the first
  std::vector<IncidentLife> incidents;  // by onset as reported; the first
  std::uint64_t verdicts_left_out = 0;
  std::uint64_t incidents_left_out = 0;  // one that opened again counts again
  std::uint64_t points_left_out = 0;     // of attempts beyond kMaxAttempts
  // The worst of CONTINUE, WATCH, RESTART, HALT; UNKNOWN if none of them was ever said.
  state::Action worst = state::Action::kUnknown;
  state::Verdict before_end;  // at the last point, before the clean end
};

class Replay final : public LogSink {
 public:
  // `policies` is copied. `most_kept`: verdicts, and incidents, that the result holds; the others are counted.
  Replay(const std::string& run, const detect::PolicySet& policies, std::size_t most_kept = 65'536);
  ~Replay() override;

  void OnPoint(const LogPoint& point) override;
  void OnEvaluation(const LogEvaluation& evaluation) override;
  void OnCheckpoint(const LogCheckpoint& checkpoint) override;
  void OnJobEvent(const LogJobEvent& event) override;
  // The clean end. Call once.
  ReplayResult Finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_REPLAY_H_
