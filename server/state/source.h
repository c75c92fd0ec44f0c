// Where records come from: ring directories today, forwarders later. The pipeline knows sources by this alone.
#ifndef LOSSGAUGE_SERVER_STATE_SOURCE_H_
#define LOSSGAUGE_SERVER_STATE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "server/state/records.h"

namespace lossgauge::state {

// Where to go on in a segment. A segment never seen before begins at 1.
struct ResumePosition {
  std::uint64_t next_steps_publication = 1;
  std::uint64_t next_events_publication = 1;
  bool ended = false;  // everything of it was delivered and its run is over: leave it alone
};

class CursorLookup {
 public:
  virtual ~CursorLookup() = default;
  virtual ResumePosition FindCursor(const SegmentId& segment) const = 0;
  // Up to where the store has it, so that nobody else need keep it: behind FindCursor by what waits for its step or for a commit.
  virtual ResumePosition FindCommitted(const SegmentId& segment) const { return FindCursor(segment); }
};

struct SourceStats {
  std::uint64_t rings_attached = 0;
  std::map<std::string, std::uint64_t> errors;  // by cause; rising
  std::uint64_t names_repaired = 0;             // rising
  std::map<std::string, std::uint64_t> ingest;  // of what comes from other nodes, by name
  bool reachable = true;  // all of it; what a run's producers see is Reaches
};

struct PollResult {
  std::size_t records = 0;           // handed over, events included
  bool more = false;                 // a budget ended the poll: call again at once
  std::int64_t oldest_age_ns = 0;    // of the records handed over, by the producers' boot clock where it compares
  std::size_t live_producers = 0;
};

// Called by the drain thread only.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  // Hands over what is there; bounded work; never waits.
  virtual PollResult Poll(RecordSink& sink, const CursorLookup& cursors, TimeNs now_ns) = 0;
  // Everything handed over so far is in the store: what was drained for good may be let go.
  virtual void OnCommitted(TimeNs now_ns) = 0;
  virtual const SourceStats& stats() const = 0;
  // Would new records of this segment come? False if the place that it is read from cannot be read.
  virtual bool Reaches(const ProducerInfo&) const { return stats().reachable; }
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_SOURCE_H_
