// Closed sets of Incident::kind. They become metric labels and parts of reason codes, so every value that can ever appear stands here
// and counters can exist at 0 before the first event.
#ifndef LOSSGAUGE_SERVER_STATE_KINDS_H_
#define LOSSGAUGE_SERVER_STATE_KINDS_H_

#include <array>
#include <string_view>

namespace lossgauge::state {

// loss_spike, blip: why, from the signals of the same steps.
inline constexpr std::string_view kCauseLogitBlowup = "logit_blowup";  // max|z| jumped with it: the normaliser blew up
inline constexpr std::string_view kCauseData = "data";                 // the number of unmasked tokens jumped: data or masking
inline constexpr std::string_view kCauseRank = "rank";                 // one data-parallel rank alone: its batch or its device
inline constexpr std::string_view kCauseOptimizer = "optimizer";       // the gradient norm rose first
inline constexpr std::string_view kCauseUnexplained = "unexplained";
inline constexpr std::array<std::string_view, 5> kSpikeCauses = {kCauseLogitBlowup, kCauseData, kCauseRank, kCauseOptimizer,
                                                                 kCauseUnexplained};

// integrity
inline constexpr std::string_view kKindMass = "mass";
inline constexpr std::string_view kKindTargetHits = "target_hits";
inline constexpr std::string_view kKindAgreement = "agreement";
inline constexpr std::string_view kKindCoverage = "coverage";
inline constexpr std::string_view kKindExchange = "exchange";
inline constexpr std::string_view kKindShard = "shard";  // not exact: against a healthy baseline, of which the others need none
inline constexpr std::array<std::string_view, 6> kIntegrityKinds = {kKindMass,     kKindTargetHits, kKindAgreement,
                                                                    kKindCoverage, kKindExchange,   kKindShard};

// accounting
inline constexpr std::string_view kKindDenominator = "denominator";
inline constexpr std::string_view kKindMeanOfMeans = "mean_of_means";
inline constexpr std::string_view kKindReportedLoss = "reported_loss";
inline constexpr std::array<std::string_view, 3> kAccountingKinds = {kKindDenominator, kKindMeanOfMeans, kKindReportedLoss};

// Reason codes of a verdict that are not names of conditions.
inline constexpr std::string_view kReasonFresh = "fresh";                        // CONTINUE
inline constexpr std::string_view kReasonPhase = "phase";                        // WATCH: a declared phase other than training
inline constexpr std::string_view kReasonNoData = "no_data";                     // UNKNOWN
inline constexpr std::string_view kReasonStale = "stale";                        // UNKNOWN
inline constexpr std::string_view kReasonUnreachable = "unreachable";            // UNKNOWN: ring directory or forwarder
inline constexpr std::string_view kReasonWarming = "warming";                    // UNKNOWN: no baseline yet
inline constexpr std::string_view kReasonEnded = "ended";                        // UNKNOWN
inline constexpr std::string_view kReasonFailed = "failed";                      // RESTART: the job declared that it failed
inline constexpr std::string_view kReasonRepeatedFailure = "repeated_failure";   // HALT: same failure, same step, after a restart
inline constexpr std::string_view kReasonNoProgress = "no_progress";             // HALT: attempts without progress
inline constexpr std::array<std::string_view, 10> kVerdictReasons = {
    kReasonFresh,  kReasonPhase, kReasonNoData, kReasonStale,           kReasonUnreachable,
    kReasonWarming, kReasonEnded, kReasonFailed, kReasonRepeatedFailure, kReasonNoProgress};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_KINDS_H_
