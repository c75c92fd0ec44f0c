#include "server/ingest/forwarder.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace lossgauge::ingest {
namespace {

// What a daemon must not miss, and what it must not hear before the records in front of it.
bool IsTurn(const state::LivenessReport& before, const state::LivenessReport& now) {
  return before.producer_state != now.producer_state || before.closed != now.closed || before.drained != now.drained || before.phase != now.phase;
}

}  // namespace

Forwarder::Forwarder(const ForwarderOptions& options, Spool* spool, std::function<void()> wake)
    : options_(options), spool_(spool), wake_(std::move(wake)), liveness_(std::make_shared<const v1::Batch>()) {}

Forwarder::Producer* Forwarder::Find(const state::ProducerInfo& info) {
  const auto found = producers_.find(info.segment);
  return found == producers_.end() ? nullptr : &found->second;
}

void Forwarder::OnProducer(const std::shared_ptr<const state::ProducerInfo>& producer) {
  Producer& known = producers_[producer->segment];
  if (known.number != 0) return;
  known.info = producer;
  known.number = next_number_++;
  WriteProducer(*producer, known.number, batch_.add_items()->mutable_producer());
  BoundBatch(512);
}

void Forwarder::OnSample(const state::RankSample& sample) {
  const Producer* producer = Find(*sample.producer);
  if (producer == nullptr) return;
  AppendSample(sample, producer->number, &batch_);
  ++batch_records_;
  BoundBatch(kStepWords * 8 + 32);
}

void Forwarder::OnEvent(const state::ProducerEvent& event) {
  const Producer* producer = Find(*event.producer);
  if (producer == nullptr) return;
  WriteEvent(event, producer->number, batch_.add_items()->mutable_event());
  ++batch_records_;
  BoundBatch(64 + event.text.size());
}

void Forwarder::OnLoss(const state::LossReport& report) {
  const Producer* producer = Find(*report.producer);
  if (producer == nullptr || report.first_publication == 0) return;
  WriteLoss(report, producer->number, batch_.add_items()->mutable_lost());
  BoundBatch(48);
}

void Forwarder::OnLiveness(const state::LivenessReport& report) {
  Producer* producer = Find(*report.producer);
  if (producer == nullptr) return;
  producer->newest = report;
  producer->has_newest = liveness_changed_ = true;
  if (producer->has_told && !IsTurn(producer->told, report)) return;
  producer->told = report;
  producer->has_told = true;
  WriteLiveness(report, producer->number, batch_.add_items()->mutable_liveness());
  BoundBatch(96);
}

void Forwarder::OnProducerGone(const state::SegmentId& segment) {
  const auto found = producers_.find(segment);
  if (found == producers_.end()) return;
  batch_.add_items()->set_gone(found->second.number);
  producers_.erase(found);
  liveness_changed_ = true;
  BoundBatch(16);
}

void Forwarder::BoundBatch(std::size_t added_bytes) {
  batch_bytes_ += added_bytes;
  if (batch_bytes_ >= options_.batch_bytes) Flush();
}

void Forwarder::Flush() {
  if (batch_.items_size() == 0) return;
  const std::string frame = batch_.SerializeAsString();
  const auto appended = spool_->Append(frame, batch_records_, [this] {
    v1::Batch all;
    for (const auto& [segment, producer] : producers_) WriteProducer(*producer.info, producer.number, all.add_items()->mutable_producer());
    return all.SerializeAsString();
  });
  const std::string error = appended.ok() ? "" : std::string(appended.status().message());
  if (!error.empty() && error != last_error_) spdlog::error("records cannot be kept for forwarding and are lost to daemons: {}", error);
  last_error_ = error;
  batch_.Clear();
  batch_bytes_ = 0;
  batch_records_ = 0;
}

void Forwarder::PublishLiveness() {
  auto all = std::make_shared<v1::Batch>();
  for (const auto& [segment, producer] : producers_) {
    if (producer.has_newest) WriteLiveness(producer.newest, producer.number, all->add_items()->mutable_liveness());
  }
  liveness_changed_ = false;
  const std::lock_guard lock(mutex_);
  liveness_ = std::move(all);
}

void Forwarder::BeforeCommit(state::TimeNs) {
  const bool has_frame = batch_.items_size() > 0;
  Flush();
  if (liveness_changed_) PublishLiveness();
  if (has_frame) wake_();
}

// While nothing is published, heartbeats still tell. Never before the records that stand in front of them.
void Forwarder::AfterCycle(state::TimeNs) {
  if (liveness_changed_ && batch_.items_size() == 0) PublishLiveness();
}

std::shared_ptr<const v1::Batch> Forwarder::liveness() const {
  const std::lock_guard lock(mutex_);
  return liveness_;
}

}  // namespace lossgauge::ingest
