// Rings of one or several directories as a source: finds segments as they appear and go, attaches to those that validate, drains them.
//
// A directory is listed when its modification time changes, and every two seconds anyway. What is refused is counted by cause, logged once,
// and tried again with growing pauses, because a file may become whole later. Drain thread only.
#ifndef LOSSGAUGE_SERVER_INGEST_RING_SOURCE_H_
#define LOSSGAUGE_SERVER_INGEST_RING_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/ingest/segment.h"
#include "server/state/clock.h"
#include "server/state/source.h"

namespace lossgauge::ingest {

struct RingSourceOptions {
  std::vector<std::string> directories;
  LivenessOptions liveness;
  bool reclaim = false;  // unlink files of segments that are dead, drained, in the store and past `reclaim_after_ns`
  std::int64_t reclaim_after_ns = std::int64_t{300} * 1'000'000'000;
  std::size_t max_segments = 4096;  // attached at a time
  std::size_t max_files = 65'536;   // looked at in a directory; beyond it a listing is partial
  std::size_t drain_budget = 1024;  // records of a ring and poll, so that a fast writer does not starve the others
};

class RingSource final : public state::RecordSource {
 public:
  RingSource(RingSourceOptions options, state::Clock* clock);
  ~RingSource() override;

  state::PollResult Poll(state::RecordSink& sink, const state::CursorLookup& cursors, state::TimeNs now_ns) override;
  void OnCommitted(state::TimeNs now_ns) override;
  const state::SourceStats& stats() const override { return stats_; }
  // Its ring is mapped, or the directory of its ring can be listed.
  bool Reaches(const state::ProducerInfo& producer) const override;

 private:
  struct Candidate {  // seen in a directory, not attached
    state::TimeNs next_try_ns = 0;
    state::TimeNs first_seen_ns = 0;
    std::int64_t pause_ns = 0;
    std::string last_cause;
    bool leave_alone = false;  // delivered before, or its run is over
    state::SegmentId segment;  // of one to be left alone: its cursor goes when its file does
  };
  struct Attached {
    std::unique_ptr<Segment> segment;
    bool vanished = false;   // its files are gone from the directory
    state::TimeNs next_events_try_ns = 0;  // of a segment without its event ring
  };
  struct Directory {
    std::string path;
    std::int64_t modified_ns = -1;
    state::TimeNs next_listing_ns = 0;
    std::string last_error;
  };
  using AttachedMap = std::map<std::string, Attached>;
  // Keys are base paths: "<directory>/<key>".
  void List(Directory* directory, state::TimeNs now_ns);
  void MarkVanished(const std::string& directory, const std::set<std::string>& present);
  void AttachCandidates(state::RecordSink& sink, const state::CursorLookup& cursors, const SegmentTime& time);
  std::unique_ptr<Segment> Open(const std::string& base, Candidate* candidate, state::TimeNs now_ns);
  void Refuse(const std::string& base, Candidate* candidate, const std::string& cause, const std::string& message, bool is_error,
              state::TimeNs now_ns);
  void AttachEvents(const std::string& base, Attached* attached, const state::CursorLookup& cursors, state::TimeNs now_ns);
  // Attached segments in the order in which they are drained: what is dead comes before its successor, which waits until it is delivered.
  std::vector<AttachedMap::iterator> DrainOrder();
  void Forget(state::RecordSink& sink, state::TimeNs now_ns);

  const RingSourceOptions options_;
  state::Clock* const clock_;
  std::uint64_t boot_id_[2] = {0, 0};
  std::vector<Directory> directories_;
  state::TimeNs next_stat_ns_ = 0;
  std::map<std::string, Candidate> candidates_;
  AttachedMap attached_;
  std::vector<state::SegmentId> vanished_candidates_;  // left alone, and now their files are gone
  state::SourceStats stats_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_RING_SOURCE_H_
