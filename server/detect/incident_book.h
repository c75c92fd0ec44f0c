// Findings in, incidents out: identity, life, counters, and which incident is only the symptom of another.
#ifndef LOSSGAUGE_SERVER_DETECT_INCIDENT_BOOK_H_
#define LOSSGAUGE_SERVER_DETECT_INCIDENT_BOOK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/detect/state_codec.h"
#include "server/state/incident.h"
#include "server/state/judge.h"

namespace lossgauge::detect {

// Where in the run something was noticed.
struct Moment {
  std::string_view attempt;
  std::int64_t step = 0;
  state::TimeNs time_ns = 0;
};

// What a detector has to say at a moment.
struct Finding {
  state::Condition condition = state::Condition::kCount;
  std::string kind;
  state::Severity severity = state::Severity::kWarning;
  std::int64_t onset_step = 0;
  std::int64_t peak_step = 0;
  std::optional<std::uint32_t> rank;
  std::string summary;
  std::vector<state::Evidence> evidence;
};

// A detector owns a slot and has at most one open incident in it. The condition of a slot's incident may sharpen while it is open (a blip
// becomes a spike, a spike a divergence). Bounded: slots come from closed sets, of the resolved the newest 64 are kept.
class IncidentBook {
 public:
  struct Slot {
    state::Condition condition;
    std::string_view kind = {};
  };

  explicit IncidentBook(std::string run);

  // Opens the slot's incident or updates it.
  const state::Incident& Report(const Slot& slot, Finding finding, const Moment& moment);
  // No effect if none is open.
  void Resolve(const Slot& slot, const Moment& moment, std::optional<std::int64_t> steps_to_recover = std::nullopt);
  // Resolves all that is open (a new attempt has begun).
  void ResolveAll(const Moment& moment);
  const state::Incident* FindOpen(const Slot& slot) const;
  // Open ones by number; hidden_by is up to date.
  std::vector<const state::Incident*> Open() const;

  // Evidence that another run had the same; of resolved ones only, whose evidence stands. No effect if it is not known or named already.
  void NameSibling(const std::string& id, const std::string& sibling);
  const state::Incident* Acknowledge(const std::string& id, const state::Acknowledgement& acknowledgement);
  std::vector<state::Incident> All() const;
  std::vector<state::Incident> TakeChanged();
  state::RunJudge::Counters counters() const;

  // Open incidents always, resolved ones newest first as long as `max_bytes` of the writer are not exceeded.
  void Save(StateWriter& out, std::size_t max_bytes) const;
  void Restore(StateReader& in);

 private:
  struct Entry {
    state::Incident incident;
    std::uint64_t number = 0;
    state::Condition counted = state::Condition::kCount;
    state::TimeNs marked_ns = 0;
  };
  using Key = std::pair<state::Condition, std::string>;

  void Count(Entry& entry);
  void Mark(Entry& entry, state::TimeNs now_ns);
  void Close(std::map<Key, Entry>::iterator it, const Moment& moment, std::optional<std::int64_t> steps_to_recover);
  void HideSymptoms(state::TimeNs now_ns);

  std::string run_;
  std::string id_prefix_;
  std::uint64_t next_number_ = 1;
  std::map<Key, Entry> open_;
  std::deque<state::Incident> resolved_;
  std::map<Key, std::uint64_t> opened_;
  std::map<std::string, state::Incident> changed_;  // by id
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_INCIDENT_BOOK_H_
