// What a bundled run told beside its steps, attempt by attempt, in the order in which it came.
#ifndef LOSSGAUGE_SERVER_REPLAY_BUNDLE_EVENTS_H_
#define LOSSGAUGE_SERVER_REPLAY_BUNDLE_EVENTS_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "server/replay/byte_source.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

class BundleEvents {
 public:
  // Held in memory at most: text beyond LG_EVENT_TEXT_BYTES is cut, events beyond this are counted as Oddity::kTooManyEvents.
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  // events.jsonl. What does not parse is counted in `report`.
  void Read(ByteSource* content, LogReport* report);

  // Of an attempt whose first step is `first_step`: how it came to begin there, if it says so. Once.
  std::optional<LogJobEvent> TakeResume(const std::string& attempt);
  // Tells those that were received before `time`; without one, all that are left, and how the attempt ended.
  void Tell(const std::string& attempt, const std::optional<std::string>& time, LogReport* report, LogSink* sink);
  // Lets go of those that were received before `time`.
  void Drop(const std::string& attempt, const std::string& time);

 private:
  struct Event {
    std::string time;  // RFC 3339, UTC
    std::variant<LogEvaluation, LogCheckpoint, LogJobEvent> what;
  };
  struct Attempt {
    std::deque<Event> events;
    std::optional<LogJobEvent> resume, end;
    std::optional<std::uint32_t> phase_rank;  // ranks tell the same phases: those of one are enough
  };

  bool Has(std::size_t bytes);
  static bool Before(std::string_view a, std::string_view b);

  std::unordered_map<std::string, Attempt> attempts_;
  std::size_t bytes_ = 0;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_BUNDLE_EVENTS_H_
