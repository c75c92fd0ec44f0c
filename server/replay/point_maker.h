// Records to points: waits for enough records to choose the loss (bounded), then numbers attempts, finds what each point stands for, and sorts out
// steps that repeat, go back or jump.
#ifndef LOSSGAUGE_SERVER_REPLAY_POINT_MAKER_H_
#define LOSSGAUGE_SERVER_REPLAY_POINT_MAKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/replay/log_point.h"
#include "server/replay/log_record.h"
#include "server/replay/series.h"

namespace lossgauge::replay {

// What reads a format hands its records to this. Not thread-safe.
class PointMaker {
 public:
  // Records looked at before the loss is chosen.
  static constexpr std::size_t kProbeRecords = 512;

  // Both outlive the maker.
  PointMaker(LogSink* sink, LogReport* report) : sink_(sink), report_(report) {}

  void OnRecord(const LogRecord& record);
  void OnCheckpoint(const LogCheckpoint& checkpoint);
  // No more records. Must be called.
  void Finish();

 private:
  struct Held {
    LogPoint point;
    std::string rank_tag;
  };

  void Choose();
  // Of the records that wait, those from `from` to `to`, and the checkpoints between them.
  void TellWaiting(std::vector<LogRecord>::const_iterator from, std::vector<LogRecord>::const_iterator to);
  void TellCheckpoint(const LogCheckpoint& checkpoint);
  void Use(const LogRecord& record);
  void UseEvaluation(const LogRecord& record);
  void Place(LogPoint point, const std::string& rank_tag);
  bool IsOtherRank(std::int64_t step, const std::string& rank_tag) const;
  void Accept(LogPoint point, const std::string& rank_tag);
  void BeginAttempt(LogPoint point, const std::string& rank_tag);
  std::optional<std::int64_t> StepOf(const LogRecord& record);

  LogSink* const sink_;
  LogReport* const report_;
  std::vector<LogRecord> waiting_;
  std::vector<LogCheckpoint> waiting_checkpoints_;
  bool chosen_ = false;
  std::optional<Series> series_;

  std::uint64_t next_index_ = 0;
  std::uint32_t attempt_ = 0;
  std::string attempt_name_;
  std::optional<std::int64_t> last_step_;
  std::optional<double> last_epoch_;
  std::int64_t epoch_offset_ = 0;   // of logs that count steps within an epoch
  std::int64_t last_raw_step_ = 0;
  std::string rank_tag_;
  std::map<std::string, std::int64_t> rank_steps_;  // last step of each rank's lines in this attempt
  std::optional<Held> held_;  // goes back or jumps: the next point says whether the log went on from it
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_POINT_MAKER_H_
