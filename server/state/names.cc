#include <array>
#include <cstdio>

#include "server/state/incident.h"
#include "server/state/snapshot.h"
#include "server/state/verdict.h"

namespace lossgauge::state {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Condition::kCount)> kConditionNames = {
    "loss_spike",   "blip",          "level_shift", "divergence",  "logit_blowup",   "normalizer_drift", "grad_explosion",
    "nonfinite",    "loss_collapse", "integrity",   "accounting",  "rank_missing",   "rank_outlier",     "slowdown",
    "repeated_batch", "attempt_conflict", "stall",  "frozen",      "no_first_step",  "producer_lost",    "records_lost",
};

constexpr std::array<const char*, static_cast<std::size_t>(LossReason::kCount)> kLossReasonNames = {"overrun", "torn", "checksum",
                                                                                                    "invalid", "spool"};

}  // namespace

std::string_view ConditionName(Condition condition) {
  const auto index = static_cast<std::size_t>(condition);
  return index < kConditionNames.size() ? kConditionNames[index] : "unknown";
}

std::optional<Condition> ConditionFromName(std::string_view name) {
  for (std::size_t i = 0; i < kConditionNames.size(); ++i) {
    if (kConditionNames[i] == name) return static_cast<Condition>(i);
  }
  return std::nullopt;
}

std::string ReasonCode(const Incident& incident) {
  std::string code(ConditionName(incident.condition));
  if (!incident.kind.empty()) code += "/" + incident.kind;
  return code;
}

std::string_view SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kInfo: return "info";
    case Severity::kWarning: return "warning";
    case Severity::kCritical: return "critical";
  }
  return "unknown";
}

std::string_view ActionName(Action action) {
  switch (action) {
    case Action::kContinue: return "CONTINUE";
    case Action::kWatch: return "WATCH";
    case Action::kRestart: return "RESTART";
    case Action::kHalt: return "HALT";
    case Action::kUnknown: return "UNKNOWN";
  }
  return "UNKNOWN";
}

const char* LossReasonName(LossReason reason) {
  const auto index = static_cast<std::size_t>(reason);
  return index < kLossReasonNames.size() ? kLossReasonNames[index] : "unknown";
}

std::string SegmentId::Hex() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return text;
}

bool DiffersInSubstance(const Verdict& a, const Verdict& b) {
  const auto point = [](const Verdict& v) { return v.resume_point ? v.resume_point->step : -1; };
  return a.action != b.action || a.reason_codes != b.reason_codes || a.rank_at_fault != b.rank_at_fault || point(a) != point(b) ||
         a.mode != b.mode || a.attempt != b.attempt;
}

std::shared_ptr<const RunSnapshot> FindRun(const Snapshot& snapshot, const std::string& run) {
  for (const auto& candidate : snapshot.runs) {
    if (candidate->run == run) return candidate;
  }
  return nullptr;
}

}  // namespace lossgauge::state
