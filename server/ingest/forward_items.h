// Between what sources hand over and the items of lossgauge.v1.Batch. Pure.
//
// Writing trusts its input, which a sidecar has validated. Reading does not: every number is checked before it is used, every text repaired.
#ifndef LOSSGAUGE_SERVER_INGEST_FORWARD_ITEMS_H_
#define LOSSGAUGE_SERVER_INGEST_FORWARD_ITEMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lossgauge/v1/ingest.pb.h"
#include "server/state/records.h"

namespace lossgauge::ingest {

inline constexpr std::uint32_t kForwardProtocol = 1;
inline constexpr std::uint32_t kStepWords = 76;  // words 1 to 76 of lg_step_record: all but sequence, reserved words and checksum
inline constexpr std::uint32_t kMaxStepWords = LG_MAX_SLOT_BYTES / 8;
inline constexpr std::uint32_t kMaxProducerNumber = 1u << 20;
inline constexpr std::uint32_t kMaxWorldSize = 1u << 20;
// Of a record or event: a thousand a second for 500 years. What gaps can add up to over all producers stays far below 2^64.
inline constexpr std::uint64_t kMaxPublication = std::uint64_t{1} << 44;
inline constexpr std::uint64_t kMaxLostRecords = std::uint64_t{1} << 40;  // of one range: more no ring can have had

void WriteProducer(const state::ProducerInfo& info, std::uint32_t number, v1::Item::Producer* out);
// Appends to the batch, into its last item if that holds the publications just before of the same producer, received at the same moment.
void AppendSample(const state::RankSample& sample, std::uint32_t number, v1::Batch* batch);
void WriteEvent(const state::ProducerEvent& event, std::uint32_t number, v1::Item::EventRecord* out);
void WriteLoss(const state::LossReport& report, std::uint32_t number, v1::Item::LostRange* out);
void WriteLiveness(const state::LivenessReport& report, std::uint32_t number, v1::Item::Liveness* out);

// INVALID_ARGUMENT names the field. `names_repaired` counts run and attempt names that were cut or repaired.
absl::StatusOr<std::shared_ptr<const state::ProducerInfo>> ReadProducer(const v1::Item::Producer& item, std::uint64_t* names_repaired);
// Copies the words that are known here; `words` holds at least one record of `step_words` words.
void ReadStep(const char* words, std::uint32_t step_words, lg_step_record* record);
state::ProducerEvent ReadEvent(const v1::Item::EventRecord& item);
state::LivenessReport ReadLiveness(const v1::Item::Liveness& item);
state::LossReason ReadLossReason(std::uint32_t reason);

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_FORWARD_ITEMS_H_
