// Every metric that lossgauged exports, once: what registers it, documents it (dashboards/METRICS.md) and checks rules and dashboards.
//
// Conventions: prefix lossgauge_ (process_ for the process itself), base units, _total on counters and on nothing else, timestamps instead
// of ages, labels from {run, rank} and small closed sets. A series lossgauge_X{run,rank} is one rank's; lossgauge_run_X{run} is the
// run's over all ranks that this process sees, ratios formed from sums.
#ifndef LOSSGAUGE_SERVER_EXPORT_CATALOGUE_H_
#define LOSSGAUGE_SERVER_EXPORT_CATALOGUE_H_

#include <cstddef>
#include <string>

namespace lossgauge::export_ {

enum class MetricKind { kCounter, kGauge };

// How long a run's series stays on the page.
enum class Life {
  kProcess,  // as long as lossgauged
  kRun,      // as long as the snapshot holds the run: lingers after its end
  kLive,     // gone with the first page after the run, or the rank's producer, has ended
};

// Order = order on the page. catalogue.cc holds one row each, checked at compile time to be in this order.
enum class Metric {
  // Counters of one rank.
  kSteps, kTokens, kUnmaskedTokens, kFiniteTokens, kNllNats, kScoredNllNats, kTargetBytes, kZLossNats, kCorrectTokens, kNonfiniteRows,
  kNonfiniteGradRows, kNonfiniteSteps, kBadTargets, kClampedRows, kMassErrorRows, kRecordsRead, kRecordsLost,
  // The same of the run.
  kRunSteps, kRunTokens, kRunUnmaskedTokens, kRunFiniteTokens, kRunNllNats, kRunScoredNllNats, kRunTargetBytes, kRunZLossNats,
  kRunCorrectTokens, kRunNonfiniteRows, kRunNonfiniteGradRows, kRunNonfiniteSteps, kRunBadTargets, kRunClampedRows, kRunMassErrorRows,
  kRunRecordsRead, kRunRecordsLost,
  // Verdict and incidents.
  kVerdict, kVerdictReason, kVerdictChanges, kVerdictEvaluated, kVerdictValidUntil, kVerdictSince, kIncidentsOpen, kIncidentsHidden,
  kIncidents, kSpikes, kMismatches, kMismatchesOpen,
  // The run itself.
  kRunInfo, kRunActive, kRunShadow, kRunEnded, kRunFirstSeen, kRunWorldSize, kRunRanks, kRunAttempts, kRunPhase, kRunCheckpointStep,
  kRunEvaluationLoss, kRunEvaluationStep, kRunVocabSize,
  // Last joined step of the run.
  kRunStep, kRunLoss, kRunPerplexity, kRunBitsPerByte, kRunObjective, kRunZLoss, kRunReportedLoss, kRunAccuracy, kRunGradNorm,
  kRunLogitGradNorm, kRunHiddenGradNorm, kRunHeadGradNorm, kRunMaxAbsLogit, kRunLogZ, kRunLogZMax, kRunLearningRate, kRunStepSeconds, kRunStepTokens, kRunStepUnmaskedTokens,
  kRunMissingRanks, kRunUnreachableRanks, kRunLastStepTime, kRunMaxLoss, kRunMaxGradNorm, kRunMaxAbsLogit60, kRunMaxLogZ, kRunMaxStepSeconds,
  // Last step of one rank.
  kStep, kLoss, kPerplexity, kBitsPerByte, kGradNorm, kLogitGradNorm, kHiddenGradNorm, kHeadGradNorm, kMaxAbsLogit, kLogZ, kLogZMax, kLearningRate, kStepSeconds,
  kStepUnmaskedTokens, kStepFiniteTokens, kProbabilityMass, kTargetHits, kExchangeBadRows, kDenominatorMin, kDenominatorMax, kMaxLoss, kMaxGradNorm, kMaxAbsLogit60, kMaxLogZ, kMaxStepSeconds, kLastRecordTime,
  // Producer of one rank.
  kRankInfo, kShardColumns, kProducerUp, kProducerState, kHeartbeatTime, kEnteredStep, kEnqueuedStep, kPublishedStep,
  // Between sidecars and daemons.
  kForwardConnected, kForwardSent, kForwardAcknowledged, kForwardDropped, kForwardFailures, kForwardSpoolBytes, kForwardSpoolErrors, kIngestSenders, kIngestBatches,
  kIngestRepeated, kIngestRecordsRefused, kIngestRefused,
  // lossgauged itself.
  kBuildInfo, kSnapshotTime, kRuns, kRunsRefused, kRanksNotExported, kNamesRepaired, kRingsAttached, kRingErrors, kDrainCycles, kDrainLag,
  kDrainBusy, kStepsJoined, kStepsCorrected, kLateRecords, kDuplicateRecords, kAbsurdSteps, kBaselineResets, kStateWriteErrors, kStateBytes,
  kHistoryThinned, kHistoryDropped, kListeningWithoutTls, kCertificateExpiry, kTlsReloads, kTlsReloadErrors, kRequestsRefused,
  kSinkPending, kSinkSteps, kSinkSamples, kSinkDropped, kSinkRequests, kSinkMoved, kSinkLastSent, kScrapes, kScrapeSeconds,
  kScrapeBytes, kDuplicatesDropped, kProcessCpu, kProcessRss, kProcessFds, kProcessMaxFds, kProcessThreads, kProcessStart,
  kCount,
};

inline constexpr std::size_t kMetricCount = static_cast<std::size_t>(Metric::kCount);

struct MetricSpec {
  Metric metric;
  MetricKind kind;
  Life life;
  const char* name;
  const char* unit;    // "nats", "tokens", "s", "1", ... for people; base units
  const char* labels;  // comma-separated, in the order in which the page writes them; "" = none
  const char* help;    // one line; no backslash, quote or newline, because the serializer does not escape HELP text
};

const MetricSpec& Spec(Metric metric);

// The table as a Markdown page: dashboards/METRICS.md, which a test keeps current.
std::string CatalogueMarkdown();

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_CATALOGUE_H_
