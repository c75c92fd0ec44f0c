// Rows of the history as bytes. Each begins with a version; a decoder refuses versions that it does not know.
#ifndef LOSSGAUGE_SERVER_STATE_HISTORY_CODEC_H_
#define LOSSGAUGE_SERVER_STATE_HISTORY_CODEC_H_

#include <optional>
#include <string>
#include <string_view>

#include "server/state/byte_codec.h"
#include "server/state/incident.h"
#include "server/state/joined_step.h"
#include "server/state/policy_view.h"
#include "server/state/verdict.h"

namespace lossgauge::state {

std::string EncodeStep(const StepSummary& step);
// `with_ranks` false: rank_steps stays empty, and what stands there is not looked at.
std::optional<StepSummary> DecodeStep(std::string_view bytes, bool with_ranks = true);
// The attempt alone, a good deal cheaper; "" for what is no step.
std::string PeekStepAttempt(std::string_view bytes);

std::string EncodeIncident(const Incident& incident);
std::optional<Incident> DecodeIncident(std::string_view bytes);

// Of the producer: run, attempt and rank.
std::string EncodeEvent(const ProducerEvent& event);
std::optional<ProducerEvent> DecodeEvent(std::string_view bytes);
// All of it but its producer and when it was received.
void PutEvent(const ProducerEvent& event, ByteWriter* out);
void GetEvent(ByteReader* in, ProducerEvent* event);

std::string EncodePolicy(const PolicyView& policy);
std::optional<PolicyView> DecodePolicy(std::string_view bytes);

std::string EncodeVerdict(const Verdict& verdict);
std::optional<Verdict> DecodeVerdict(std::string_view bytes);

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_HISTORY_CODEC_H_
