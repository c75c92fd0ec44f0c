// Conditions and their life. Names are those of design: they appear in metrics, alerts, RPCs and runbooks.
#ifndef LOSSGAUGE_SERVER_STATE_INCIDENT_H_
#define LOSSGAUGE_SERVER_STATE_INCIDENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/state/records.h"

namespace lossgauge::state {

enum class Condition {
  kLossSpike,
  kBlip,
  kLevelShift,
  kDivergence,
  kLogitBlowup,
  kNormalizerDrift,
  kGradExplosion,
  kNonfinite,
  kLossCollapse,
  kIntegrity,   // kind: mass, target_hits, agreement, coverage, exchange, shard
  kAccounting,  // kind: denominator, mean_of_means, reported_loss
  kRankMissing,
  kRankOutlier,
  kSlowdown,
  kRepeatedBatch,
  kAttemptConflict,
  kStall,
  kFrozen,
  kNoFirstStep,
  kProducerLost,
  kRecordsLost,
  kCount,
};

// "loss_spike", "blip", ...
std::string_view ConditionName(Condition condition);
std::optional<Condition> ConditionFromName(std::string_view name);

enum class Severity { kInfo = 1, kWarning = 2, kCritical = 3 };
std::string_view SeverityName(Severity severity);  // "info", "warning", "critical"

struct Evidence {
  std::string name;
  double value = 0;
  std::string unit;  // "nats", "tokens", "steps", "s", "" ...
  std::string text;  // for what is not a number
};

struct Acknowledgement {
  std::string by;
  std::string comment;
  TimeNs time_ns = 0;
};

struct Incident {
  std::string id;  // "<run hash>-<number>", stable over restarts
  std::string run;
  std::string attempt;
  Condition condition = Condition::kCount;
  std::string kind;  // integrity and accounting: kind; loss_spike: cause; else empty. From closed sets: it becomes a label
  Severity severity = Severity::kInfo;
  bool open = true;
  std::int64_t onset_step = 0;
  std::int64_t peak_step = 0;
  std::int64_t last_step = 0;
  TimeNs onset_time_ns = 0;
  TimeNs last_time_ns = 0;
  TimeNs resolved_time_ns = 0;  // 0 while open
  std::string summary;  // one line for a person
  std::vector<Evidence> evidence;
  std::optional<std::uint32_t> rank;
  std::optional<Acknowledgement> acknowledged;
  std::string hidden_by;  // id of the open root incident that explains this one; empty = shown
  std::optional<std::int64_t> steps_to_recover;
};

// "integrity/mass", "loss_spike/data", "stall": the condition, and the kind where there is one. What verdicts name an incident by.
std::string ReasonCode(const Incident& incident);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_INCIDENT_H_
