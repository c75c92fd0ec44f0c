#include "server/detect/incident_book.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::detect {
namespace {

using state::Condition;
using state::Incident;

constexpr std::size_t kMaxResolved = 64;
constexpr std::size_t kMaxOpen = 64;
constexpr std::size_t kMaxEvidence = 16;
constexpr std::int64_t kRefreshNs = 10'000'000'000;  // an open incident that only grows older is written out this often
constexpr std::int64_t kPrecursorSteps = 30;        // a loss that blows up within this many steps before the NaN belongs to the NaN

std::uint64_t HashText(std::string_view text) {
  std::uint64_t hash = 0x6c67u;
  for (const char c : text) hash = lg_ring_mix(hash ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15u;
  return hash;
}

int RootRank(Condition condition) {
  switch (condition) {
    case Condition::kProducerLost: return 3;
    case Condition::kNonfinite: return 2;
    case Condition::kIntegrity: return 1;
    default: return 0;
  }
}

// True if `root` explains `symptom`. Something that began well before the root is no symptom of it, and nothing that is worse than the root
// is: a NaN that is over, or one overflow now and then, must not hide a run that is lost.
bool Explains(const Incident& root, const Incident& symptom) {
  if (RootRank(root.condition) <= RootRank(symptom.condition) || symptom.severity > root.severity) return false;
  if (root.condition == Condition::kProducerLost) {
    switch (symptom.condition) {
      case Condition::kRankMissing:
      case Condition::kStall:
      case Condition::kFrozen:
      case Condition::kSlowdown:
      case Condition::kNoFirstStep:
      case Condition::kRecordsLost:
        return true;
      default:
        return symptom.onset_step > root.onset_step;
    }
  }
  const std::int64_t margin = root.condition == Condition::kNonfinite ? kPrecursorSteps : 0;
  switch (symptom.condition) {
    case Condition::kStall:
    case Condition::kFrozen:
    case Condition::kAttemptConflict:
    case Condition::kRecordsLost:
    case Condition::kRankMissing:
      return false;
    default:
      return symptom.onset_step >= root.onset_step - margin;
  }
}

}  // namespace

IncidentBook::IncidentBook(std::string run)
    : run_(std::move(run)), id_prefix_(absl::StrFormat("%08x-", HashText(run_) >> 32)) {}

void IncidentBook::Count(Entry& entry) {
  if (entry.counted == entry.incident.condition) return;
  entry.counted = entry.incident.condition;
  ++opened_[{entry.incident.condition, entry.incident.kind}];
}

void IncidentBook::Mark(Entry& entry, state::TimeNs now_ns) {
  entry.marked_ns = now_ns;
  changed_[entry.incident.id] = entry.incident;
}

const Incident& IncidentBook::Report(const Slot& slot, Finding finding, const Moment& moment) {
  const Key key{slot.condition, std::string(slot.kind)};
  auto [it, inserted] = open_.try_emplace(key);
  Entry& entry = it->second;
  Incident& incident = entry.incident;
  bool substance = inserted;
  if (inserted) {
    entry.number = next_number_++;
    incident.id = absl::StrCat(id_prefix_, entry.number);
    incident.run = run_;
    incident.attempt = std::string(moment.attempt);
    incident.onset_step = finding.onset_step;
    incident.onset_time_ns = moment.time_ns;
  }
  substance = substance || incident.condition != finding.condition || incident.kind != finding.kind ||
              incident.severity != finding.severity || incident.peak_step != finding.peak_step || incident.rank != finding.rank;
  incident.condition = finding.condition;
  incident.kind = std::move(finding.kind);
  incident.severity = finding.severity;
  incident.onset_step = std::min(incident.onset_step, finding.onset_step);
  incident.peak_step = finding.peak_step;
  incident.last_step = moment.step;
  incident.last_time_ns = moment.time_ns;
  incident.summary = std::move(finding.summary);
  incident.evidence = std::move(finding.evidence);
  if (incident.evidence.size() > kMaxEvidence) incident.evidence.resize(kMaxEvidence);
  for (state::Evidence& item : incident.evidence) {
    if (!std::isfinite(item.value)) {  // what is not a number is said in words
      item.text = std::isnan(item.value) ? "NaN" : item.value > 0 ? "+inf" : "-inf";
      item.value = 0;
      item.unit.clear();  // "0 nats" would be read as a measurement
    }
  }
  incident.rank = finding.rank;
  if (incident.condition != Condition::kBlip) Count(entry);  // a blip may still turn out to be a spike
  if (substance) HideSymptoms(moment.time_ns);
  if (substance || moment.time_ns - entry.marked_ns >= kRefreshNs) Mark(entry, moment.time_ns);
  return incident;
}

void IncidentBook::Close(std::map<Key, Entry>::iterator it, const Moment& moment, std::optional<std::int64_t> steps_to_recover) {
  Entry& entry = it->second;
  Count(entry);
  entry.incident.open = false;
  entry.incident.resolved_time_ns = moment.time_ns;
  entry.incident.steps_to_recover = steps_to_recover;
  entry.incident.hidden_by.clear();
  Mark(entry, moment.time_ns);
  resolved_.push_back(std::move(entry.incident));
  if (resolved_.size() > kMaxResolved) resolved_.pop_front();
  open_.erase(it);
}

void IncidentBook::Resolve(const Slot& slot, const Moment& moment, std::optional<std::int64_t> steps_to_recover) {
  if (open_.empty()) return;
  const auto it = open_.find(Key{slot.condition, std::string(slot.kind)});
  if (it == open_.end()) return;
  Close(it, moment, steps_to_recover);
  HideSymptoms(moment.time_ns);
}

void IncidentBook::ResolveAll(const Moment& moment) {
  while (!open_.empty()) Close(open_.begin(), moment, std::nullopt);
}

const Incident* IncidentBook::FindOpen(const Slot& slot) const {
  if (open_.empty()) return nullptr;
  const auto it = open_.find(Key{slot.condition, std::string(slot.kind)});
  return it == open_.end() ? nullptr : &it->second.incident;
}

std::vector<const Incident*> IncidentBook::Open() const {
  std::vector<const Entry*> entries;
  for (const auto& [key, entry] : open_) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) { return a->number < b->number; });
  std::vector<const Incident*> result;
  for (const Entry* entry : entries) result.push_back(&entry->incident);
  return result;
}

void IncidentBook::HideSymptoms(state::TimeNs now_ns) {
  for (auto& [key, entry] : open_) {
    const Incident* root = nullptr;
    for (const auto& [other_key, other] : open_) {
      if (!Explains(other.incident, entry.incident)) continue;
      if (root == nullptr || RootRank(other.incident.condition) > RootRank(root->condition)) root = &other.incident;
    }
    const std::string id = root == nullptr ? std::string() : root->id;
    if (id == entry.incident.hidden_by) continue;
    entry.incident.hidden_by = id;
    Mark(entry, now_ns);
  }
}

const Incident* IncidentBook::Acknowledge(const std::string& id, const state::Acknowledgement& acknowledgement) {
  for (auto& [key, entry] : open_) {
    if (entry.incident.id != id) continue;
    entry.incident.acknowledged = acknowledgement;
    Mark(entry, acknowledgement.time_ns);
    return &entry.incident;
  }
  for (Incident& incident : resolved_) {
    if (incident.id != id) continue;
    incident.acknowledged = acknowledgement;
    changed_[id] = incident;
    return &incident;
  }
  return nullptr;
}

void IncidentBook::NameSibling(const std::string& id, const std::string& sibling) {
  for (Incident& incident : resolved_) {
    if (incident.id != id) continue;
    const bool named = std::any_of(incident.evidence.begin(), incident.evidence.end(),
                                   [&](const state::Evidence& item) { return item.name == "sibling" && item.text == sibling; });
    if (named || incident.evidence.size() >= kMaxEvidence) return;
    const bool first = std::none_of(incident.evidence.begin(), incident.evidence.end(), [](const state::Evidence& item) { return item.name == "sibling"; });
    incident.evidence.push_back({"sibling", 0, "", sibling});
    if (first) absl::StrAppend(&incident.summary, "; run '", sibling, "' had the same at this step: the data did it");
    changed_[id] = incident;
    return;
  }
}

std::vector<Incident> IncidentBook::All() const {
  std::vector<Incident> all(resolved_.begin(), resolved_.end());
  for (const Incident* incident : Open()) all.push_back(*incident);
  std::stable_sort(all.begin(), all.end(), [](const Incident& a, const Incident& b) { return a.onset_time_ns < b.onset_time_ns; });
  return all;
}

std::vector<Incident> IncidentBook::TakeChanged() {
  std::vector<Incident> result;
  result.reserve(changed_.size());
  for (auto& [id, incident] : changed_) result.push_back(std::move(incident));
  changed_.clear();
  return result;
}

state::RunJudge::Counters IncidentBook::counters() const {
  state::RunJudge::Counters counters;
  for (const auto& [key, opened] : opened_) counters.incidents.push_back({key.first, key.second, opened});
  return counters;
}

namespace {

void SaveIncident(StateWriter& out, const Incident& incident) {
  out.PutText(incident.id);
  out.PutText(incident.attempt);
  out.Put(static_cast<std::uint8_t>(incident.condition));
  out.PutText(incident.kind);
  out.Put(static_cast<std::uint8_t>(incident.severity));
  out.Put(incident.onset_step);
  out.Put(incident.peak_step);
  out.Put(incident.last_step);
  out.Put(incident.onset_time_ns);
  out.Put(incident.last_time_ns);
  out.Put(incident.resolved_time_ns);
  out.PutText(incident.summary);
  out.Put(static_cast<std::uint8_t>(incident.evidence.size()));
  for (const state::Evidence& item : incident.evidence) {
    out.PutText(item.name);
    out.Put(item.value);
    out.PutText(item.unit);
    out.PutText(item.text);
  }
  out.PutOptional(incident.rank);
  out.Put<std::uint8_t>(incident.acknowledged ? 1 : 0);
  if (incident.acknowledged) {
    out.PutText(incident.acknowledged->by);
    out.PutText(incident.acknowledged->comment);
    out.Put(incident.acknowledged->time_ns);
  }
  out.PutText(incident.hidden_by);
  out.PutOptional(incident.steps_to_recover);
}

Condition GetCondition(StateReader& in) {
  return static_cast<Condition>(in.GetIn<std::uint8_t>(0, static_cast<std::uint8_t>(Condition::kCount) - 1));
}

Incident RestoreIncident(StateReader& in, const std::string& run, bool open) {
  Incident incident;
  incident.run = run;
  incident.open = open;
  incident.id = in.GetText(64);
  incident.attempt = in.GetText(256);
  incident.condition = GetCondition(in);
  incident.kind = in.GetText(64);
  incident.severity = static_cast<state::Severity>(in.GetIn<std::uint8_t>(1, 3));
  incident.onset_step = in.GetStep();
  incident.peak_step = in.GetStep();
  incident.last_step = in.GetStep();
  incident.onset_time_ns = in.GetTime();
  incident.last_time_ns = in.GetTime();
  incident.resolved_time_ns = in.GetTime();
  incident.summary = in.GetText(2048);
  const int evidence = in.GetIn<std::uint8_t>(0, kMaxEvidence);
  for (int i = 0; i < evidence && in.ok(); ++i) {
    state::Evidence item;
    item.name = in.GetText(128);
    item.value = in.GetFinite();
    item.unit = in.GetText(64);
    item.text = in.GetText(2048);
    incident.evidence.push_back(std::move(item));
  }
  incident.rank = in.GetOptional<std::uint32_t>();
  if (in.GetBool()) {
    state::Acknowledgement acknowledged;
    acknowledged.by = in.GetText(4096);
    acknowledged.comment = in.GetText(65535);
    acknowledged.time_ns = in.GetTime();
    incident.acknowledged = std::move(acknowledged);
  }
  incident.hidden_by = in.GetText(64);
  incident.steps_to_recover = in.GetOptional<std::int64_t>();
  return incident;
}

}  // namespace

void IncidentBook::Save(StateWriter& out, std::size_t max_bytes) const {
  out.Put(next_number_);
  out.Put(static_cast<std::uint16_t>(opened_.size()));
  for (const auto& [key, opened] : opened_) {
    out.Put(static_cast<std::uint8_t>(key.first));
    out.PutText(key.second);
    out.Put(opened);
  }
  out.Put(static_cast<std::uint16_t>(open_.size()));
  for (const auto& [key, entry] : open_) {
    out.Put(static_cast<std::uint8_t>(key.first));
    out.PutText(key.second);
    out.Put(entry.number);
    out.Put(static_cast<std::uint8_t>(entry.counted));
    out.Put(entry.marked_ns);
    SaveIncident(out, entry.incident);
  }
  StateWriter kept;
  std::uint16_t count = 0;
  for (auto it = resolved_.rbegin(); it != resolved_.rend(); ++it) {
    StateWriter one;
    SaveIncident(one, *it);
    if (out.size() + kept.size() + one.size() + 2 > max_bytes) break;
    SaveIncident(kept, *it);
    ++count;
  }
  out.Put(count);
  const std::string bytes = kept.Take();
  for (const char c : bytes) out.Put(c);
}

void IncidentBook::Restore(StateReader& in) {
  next_number_ = in.GetIn<std::uint64_t>(1, std::uint64_t{1} << 62);
  const int counters = in.GetIn<std::uint16_t>(0, 1024);
  for (int i = 0; i < counters && in.ok(); ++i) {
    const Condition condition = GetCondition(in);
    std::string kind = in.GetText(64);
    opened_[{condition, std::move(kind)}] = in.Get<std::uint64_t>();
  }
  const int open = in.GetIn<std::uint16_t>(0, kMaxOpen);
  for (int i = 0; i < open && in.ok(); ++i) {
    const Condition condition = GetCondition(in);
    std::string kind = in.GetText(64);
    Entry& entry = open_[{condition, std::move(kind)}];
    entry.number = in.Get<std::uint64_t>();
    entry.counted = static_cast<Condition>(in.GetIn<std::uint8_t>(0, static_cast<std::uint8_t>(Condition::kCount)));
    entry.marked_ns = in.GetTime();
    entry.incident = RestoreIncident(in, run_, true);
  }
  const int resolved = in.GetIn<std::uint16_t>(0, kMaxResolved);
  for (int i = 0; i < resolved && in.ok(); ++i) resolved_.push_front(RestoreIncident(in, run_, false));
}

}  // namespace lossgauge::detect
