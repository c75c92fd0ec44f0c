#include "server/replay/replay_record.h"

#include <algorithm>

namespace lossgauge::replay {
namespace {

int Badness(state::Action action) {
  switch (action) {
    case state::Action::kContinue: return 1;
    case state::Action::kWatch: return 2;
    case state::Action::kRestart: return 3;
    case state::Action::kHalt: return 4;
    case state::Action::kUnknown: break;
  }
  return 0;
}

}  // namespace

void ReplayRecord::OnIncidents(const std::vector<state::Incident>& changed) {
  for (const state::Incident& incident : changed) {
    const auto [it, inserted] = index_.try_emplace(incident.id, result.incidents.size());
    if (inserted) {
      if (result.incidents.size() >= most_kept_) {
        index_.erase(it);
        if (left_out_.insert(incident.id).second) ++result.incidents_left_out;
        if (!incident.open) left_out_.erase(incident.id);
        continue;
      }
      result.incidents.emplace_back().first = now;
    }
    IncidentLife& life = result.incidents[it->second];
    life.worst = std::max(life.worst, incident.severity);
    if (incident.severity > state::Severity::kInfo && !life.warned) life.warned = now;
    if (incident.severity == state::Severity::kCritical && !life.critical) life.critical = now;
    if (!incident.open && !life.resolved) life.resolved = now;
    if (incident.open) life.resolved.reset();
    life.incident = incident;
  }
}

void ReplayRecord::OnVerdict(const state::Verdict& said) {
  if (!at_end) {
    if (Badness(said.action) > Badness(result.worst)) result.worst = said.action;
    result.before_end = said;
  }
  if (verdict_ && !state::DiffersInSubstance(*verdict_, said)) return;
  verdict_ = said;
  if (result.verdicts.size() < most_kept_) {
    result.verdicts.push_back({now, said});
  } else {
    ++result.verdicts_left_out;
  }
}

}  // namespace lossgauge::replay
