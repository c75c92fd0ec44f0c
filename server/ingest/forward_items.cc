#include "server/ingest/forward_items.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/ingest/text_repair.h"

namespace lossgauge::ingest {
namespace {

static_assert(std::endian::native == std::endian::little, "records travel as little-endian words");
static_assert(offsetof(lg_step_record, reserved) == 8 * (1 + kStepWords), "kStepWords ends where the reserved words begin");
constexpr std::size_t kStepBytes = kStepWords * 8;

constexpr lg_axis lg_layout::* kAxes[] = {&lg_layout::dp, &lg_layout::tp, &lg_layout::pp, &lg_layout::cp, &lg_layout::ep};
constexpr const char* kAxisNames[] = {"dp", "tp", "pp", "cp", "ep"};

absl::Status Wrong(std::string_view field, const std::string& expected, std::uint64_t got) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": expected ", expected, ", got ", got));
}

absl::Status ReadLayout(const v1::Item::Layout& item, lg_layout* layout) {
  if (item.world_size() == 0 || item.world_size() > kMaxWorldSize) {
    return Wrong("layout.world_size", absl::StrCat("1 to ", kMaxWorldSize), item.world_size());
  }
  if (item.rank() >= item.world_size()) return Wrong("layout.rank", absl::StrCat("less than the world size ", item.world_size()), item.rank());
  layout->world_size = item.world_size();
  layout->rank = item.rank();
  if (item.sizes_size() != 5 || item.indices_size() != 5) {
    return Wrong("layout.sizes, layout.indices", "5 of each", static_cast<std::uint64_t>(item.sizes_size()));
  }
  for (int i = 0; i < 5; ++i) {
    if (item.sizes(i) == 0 || item.sizes(i) > kMaxWorldSize) return Wrong(absl::StrCat("layout.sizes of ", kAxisNames[i]), "1 to 2^20", item.sizes(i));
    if (item.indices(i) >= item.sizes(i)) {
      return Wrong(absl::StrCat("layout.indices of ", kAxisNames[i]), absl::StrCat("less than its size ", item.sizes(i)), item.indices(i));
    }
    layout->*kAxes[i] = {item.sizes(i), item.indices(i)};
  }
  layout->has_loss = item.has_loss() ? 1 : 0;
  layout->gradient_reduction = item.gradient_reduction() <= LG_GRADIENT_REDUCTION_MEAN ? item.gradient_reduction() : std::uint32_t{LG_GRADIENT_REDUCTION_UNKNOWN};
  layout->shard_offset = item.shard_offset();
  layout->shard_columns = item.shard_columns();
  layout->vocab_size = item.vocab_size();
  return absl::OkStatus();
}

std::int64_t Age(std::uint64_t ns) { return static_cast<std::int64_t>(std::min<std::uint64_t>(ns, std::numeric_limits<std::int64_t>::max() / 2)); }

}  // namespace

void WriteProducer(const state::ProducerInfo& info, std::uint32_t number, v1::Item::Producer* out) {
  out->set_number(number);
  out->set_segment(info.segment.words, sizeof info.segment.words);
  out->set_run(info.run);
  out->set_attempt(info.attempt);
  out->set_attempt_start_ns(info.attempt_start_ns);
  v1::Item::Layout* layout = out->mutable_layout();
  layout->set_world_size(info.layout.world_size);
  layout->set_rank(info.layout.rank);
  for (const auto axis : kAxes) {
    layout->add_sizes(std::max<std::uint32_t>((info.layout.*axis).size, 1));
    layout->add_indices((info.layout.*axis).index);
  }
  layout->set_has_loss(info.layout.has_loss != 0);
  layout->set_gradient_reduction(info.layout.gradient_reduction);
  layout->set_shard_offset(info.layout.shard_offset);
  layout->set_shard_columns(info.layout.shard_columns);
  layout->set_vocab_size(info.layout.vocab_size);
  out->set_label_smoothing(info.label_smoothing);
  out->set_z_loss_weight(info.z_loss_weight);
  for (const std::string& name : info.block_names) out->add_block_names(name);
  out->set_ring_path(RepairUtf8(info.ring_path));
}

void AppendSample(const state::RankSample& sample, std::uint32_t number, v1::Batch* batch) {
  v1::Item::StepRecords* records = nullptr;
  if (batch->items_size() > 0 && batch->items(batch->items_size() - 1).has_steps()) {
    records = batch->mutable_items(batch->items_size() - 1)->mutable_steps();
    const bool follows = records->producer() == number && records->received_ns() == static_cast<std::uint64_t>(sample.receive_time_ns) &&
                         records->first_publication() + records->words().size() / kStepBytes == sample.publication;
    if (!follows) records = nullptr;
  }
  if (records == nullptr) {
    records = batch->add_items()->mutable_steps();
    records->set_producer(number);
    records->set_first_publication(sample.publication);
    records->set_received_ns(static_cast<std::uint64_t>(sample.receive_time_ns));
  }
  records->mutable_words()->append(reinterpret_cast<const char*>(&sample.record) + 8, kStepBytes);
}

void WriteEvent(const state::ProducerEvent& event, std::uint32_t number, v1::Item::EventRecord* out) {
  out->set_producer(number);
  out->set_publication(event.publication);
  out->set_kind(event.kind);
  out->set_step(event.step);
  out->set_phase(event.phase);
  out->set_value(event.value);
  out->set_count(event.count);
  out->set_text(event.text);
  out->set_wall_ns(event.producer_wall_ns);
  out->set_received_ns(static_cast<std::uint64_t>(event.receive_time_ns));
}

void WriteLoss(const state::LossReport& report, std::uint32_t number, v1::Item::LostRange* out) {
  out->set_producer(number);
  out->set_events(report.event_ring);
  out->set_first_publication(report.first_publication);
  out->set_records(report.records);
  out->set_reason(static_cast<std::uint32_t>(report.reason));
  out->set_noticed_ns(static_cast<std::uint64_t>(report.time_ns));
}

void WriteLiveness(const state::LivenessReport& report, std::uint32_t number, v1::Item::Liveness* out) {
  out->set_producer(number);
  out->set_state(static_cast<std::uint32_t>(report.producer_state));
  out->set_closed(static_cast<std::uint32_t>(report.closed));
  out->set_drained(report.drained);
  out->set_heartbeat_age_ns(static_cast<std::uint64_t>(report.heartbeat_age_ns));
  out->set_enqueued_step(report.enqueued_step);
  out->set_published_step(report.published_step);
  out->set_entered_step(report.entered_step);
  out->set_last_call(static_cast<std::uint32_t>(report.last_call));
  out->set_last_call_age_ns(static_cast<std::uint64_t>(report.last_call_age_ns));
  out->set_phase(static_cast<std::uint32_t>(report.phase));
  out->set_phase_age_ns(static_cast<std::uint64_t>(report.phase_age_ns));
  out->set_seen_ns(static_cast<std::uint64_t>(report.time_ns));
}

absl::StatusOr<std::shared_ptr<const state::ProducerInfo>> ReadProducer(const v1::Item::Producer& item, std::uint64_t* names_repaired) {
  auto info = std::make_shared<state::ProducerInfo>();
  if (item.segment().size() != sizeof info->segment.words) return Wrong("segment", "16 bytes", item.segment().size());
  std::memcpy(info->segment.words, item.segment().data(), sizeof info->segment.words);
  if (info->segment == state::SegmentId{}) return absl::InvalidArgumentError("segment: all bytes are zero");
  if (absl::Status status = ReadLayout(item.layout(), &info->layout); !status.ok()) return status;
  RepairedName run = RepairName(item.run(), kMaxRunBytes);
  RepairedName attempt = RepairName(item.attempt(), kMaxAttemptBytes);
  *names_repaired += run.repaired + attempt.repaired;
  info->run = std::move(run.name);
  info->attempt = std::move(attempt.name);
  info->attempt_start_ns = item.attempt_start_ns();
  info->label_smoothing = std::isfinite(item.label_smoothing()) ? item.label_smoothing() : 0;
  info->z_loss_weight = std::isfinite(item.z_loss_weight()) ? item.z_loss_weight() : 0;
  const auto blocks = std::min<std::size_t>(info->block_names.size(), static_cast<std::size_t>(item.block_names_size()));
  for (std::size_t i = 0; i < blocks; ++i) {
    info->block_names[i] = RepairUtf8(std::string_view(item.block_names(static_cast<int>(i))).substr(0, LG_BLOCK_NAME_BYTES));
  }
  info->ring_path = RepairUtf8(std::string_view(item.ring_path()).substr(0, 4096));
  return std::shared_ptr<const state::ProducerInfo>(std::move(info));
}

void ReadStep(const char* words, std::uint32_t step_words, lg_step_record* record) {
  *record = {};
  std::memcpy(reinterpret_cast<char*>(record) + 8, words, std::min(step_words, kStepWords) * std::size_t{8});
}

state::ProducerEvent ReadEvent(const v1::Item::EventRecord& item) {
  state::ProducerEvent event;
  event.kind = item.kind();
  event.step = item.step();
  event.phase = item.phase();
  event.value = item.value();
  event.count = item.count();
  event.text = RepairUtf8(std::string_view(item.text()).substr(0, LG_EVENT_TEXT_BYTES));
  event.publication = item.publication();
  event.producer_wall_ns = item.wall_ns();
  return event;
}

state::LivenessReport ReadLiveness(const v1::Item::Liveness& item) {
  state::LivenessReport report;
  report.producer_state = static_cast<state::ProducerState>(std::min<std::uint32_t>(item.state(), static_cast<std::uint32_t>(state::ProducerState::kEnded)));
  report.closed = std::min<std::uint64_t>(item.closed(), LG_CLOSE_FAILED);
  report.drained = item.drained();
  report.heartbeat_age_ns = Age(item.heartbeat_age_ns());
  report.enqueued_step = item.enqueued_step();
  report.published_step = item.published_step();
  report.entered_step = item.entered_step();
  report.last_call = item.last_call();
  report.last_call_age_ns = Age(item.last_call_age_ns());
  report.phase = item.phase();
  report.phase_age_ns = Age(item.phase_age_ns());
  return report;
}

state::LossReason ReadLossReason(std::uint32_t reason) {
  constexpr auto kCount = static_cast<std::uint32_t>(state::LossReason::kCount);
  return static_cast<state::LossReason>(reason < kCount ? reason : static_cast<std::uint32_t>(state::LossReason::kInvalid));
}

}  // namespace lossgauge::ingest
