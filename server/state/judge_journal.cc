#include "server/state/judge_journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/state/history_codec.h"
#include "server/state/journal_entry.h"

namespace lossgauge::state {

std::uint64_t VerdictHash(const Verdict& verdict) {
  const std::string bytes = EncodeVerdict(verdict);
  std::uint64_t hash = lg_ring_mix(bytes.size() + 1);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    hash = lg_ring_mix(hash ^ word) + 0x9e3779b97f4a7c15u;
  }
  return hash;
}

void JournaledJudge::PutPolicy() {
  const auto policy = judge_->policy();
  out_.String(EncodePolicy(policy == nullptr ? PolicyView() : *policy));
}

bool JournaledJudge::Begin() {
  if (!options_.on || has_too_many_) return false;
  if (has_begun_) return true;
  has_begun_ = part_begins_ = true;
  producers_.Clear();
  last_time_ns_ = 0;
  last_sequence_ = 0;
  piece_bytes_ = 0;
  out_.U64(journal::kBeginning);
  out_.U64(journal::kVersion);
  out_.Bool(std::exchange(goes_on_, false));
  PutPolicy();
  out_.String(judge_->Save());
  return true;
}

std::uint64_t JournaledJudge::Known(const std::shared_ptr<const ProducerInfo>& producer) {
  bool is_new = false;
  const std::uint64_t number = producers_.Number(producer, &is_new);
  if (!is_new) return number;
  out_.U64(journal::kProducer);
  PutProducer(*producer, &out_);
  return number;
}

void JournaledJudge::PutTime(TimeNs time_ns) { out_.I64(time_ns - std::exchange(last_time_ns_, time_ns)); }

void JournaledJudge::GiveUp() {
  has_too_many_ = true;
  Restart();
}

void JournaledJudge::OnStep(const JoinedStep& step) {
  if (step.samples.size() > options_.max_ranks) GiveUp();
  if (Begin()) {
    for (const RankSample& sample : step.samples) (void)Known(sample.producer);
    out_.U64(journal::kStep);
    const StepSummary& summary = step.summary;
    out_.U64(summary.sequence - std::exchange(last_sequence_, summary.sequence));
    out_.Bool(summary.complete);
    out_.U64(summary.missing_ranks.size());
    for (const std::uint32_t rank : summary.missing_ranks) out_.U64(rank);
    out_.Bool(summary.step_seconds.has_value());
    if (summary.step_seconds) out_.F64(*summary.step_seconds);
    out_.U64(step.samples.size());
    for (const RankSample& sample : step.samples) {
      const std::uint64_t number = Known(sample.producer);
      out_.U64(number);
      out_.U64(sample.publication);
      out_.U64(sample.lost_before);
      PutTime(sample.receive_time_ns);
      producers_.PutRecord(number, sample.record, &out_);
    }
  }
  judge_->OnStep(step);
}

void JournaledJudge::OnEvent(const ProducerEvent& event) {
  if (Begin()) {
    const std::uint64_t number = Known(event.producer);
    out_.U64(journal::kEvent);
    out_.U64(number);
    PutEvent(event, &out_);
    PutTime(event.receive_time_ns);
  }
  judge_->OnEvent(event);
}

void JournaledJudge::OnLoss(const LossReport& report) {
  if (Begin()) {
    const std::uint64_t number = Known(report.producer);
    out_.U64(journal::kLoss);
    out_.U64(number);
    out_.U64(static_cast<std::uint64_t>(report.reason));
    out_.U64(report.records);
    out_.U64(report.first_publication);
    out_.Bool(report.event_ring);
    PutTime(report.time_ns);
  }
  judge_->OnLoss(report);
}

void JournaledJudge::PutLiveness(const LivenessReport& report) {
  out_.U64(Known(report.producer));
  out_.U64(static_cast<std::uint64_t>(report.producer_state));
  out_.U64(report.closed);
  out_.I64(report.heartbeat_age_ns);
  out_.I64(report.enqueued_step);
  out_.I64(report.published_step);
  out_.I64(report.entered_step);
  out_.U64(report.last_call);
  out_.I64(report.last_call_age_ns);
  out_.U64(report.phase);
  out_.I64(report.phase_age_ns);
  out_.Bool(report.drained);
  PutTime(report.time_ns);
}

void JournaledJudge::OnPresence(const Presence& presence) {
  if (presence.producers.size() > options_.max_ranks) GiveUp();
  if (Begin()) {
    for (const LivenessReport& report : presence.producers) (void)Known(report.producer);
    out_.U64(journal::kPresence);
    PutTime(presence.now_ns);
    out_.String(presence.newest_attempt);
    out_.Bool(presence.last_step.has_value());
    if (presence.last_step) out_.I64(*presence.last_step);
    out_.I64(presence.now_ns - presence.last_step_time_ns);
    out_.I64(presence.now_ns - presence.first_seen_ns);
    out_.U64(presence.expected_ranks.size());
    for (const std::uint32_t rank : presence.expected_ranks) out_.U64(rank);
    out_.U64(presence.records_lost);
    out_.Bool(presence.source_reachable);
    out_.U64(presence.unreachable_ranks);
    out_.U64(presence.first_unreachable_rank);
    out_.U64(presence.producers.size());
    for (const LivenessReport& report : presence.producers) PutLiveness(report);
  }
  judge_->OnPresence(presence);
}

void JournaledJudge::OnAction(const LedgerEntry& entry) {
  if (Begin()) {
    out_.U64(journal::kAction);
    out_.U64(static_cast<std::uint64_t>(entry.action));
    for (const std::string* text : {&entry.actor, &entry.comment, &entry.attempt}) out_.String(*text);
    PutTime(entry.time_ns);
  }
  judge_->OnAction(entry);
}

bool JournaledJudge::Acknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement) {
  if (Begin()) {
    out_.U64(journal::kAcknowledgement);
    for (const std::string* text : {&incident_id, &acknowledgement.by, &acknowledgement.comment}) out_.String(*text);
    PutTime(acknowledgement.time_ns);
  }
  return judge_->Acknowledge(incident_id, acknowledgement);
}

void JournaledJudge::SetMode(const std::string& mode) {
  if (Begin()) {
    out_.U64(journal::kMode);
    out_.String(mode);
  }
  judge_->SetMode(mode);
}

void JournaledJudge::NameSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns) {
  if (Begin()) {
    out_.U64(journal::kSibling);
    out_.String(incident_id);
    out_.String(sibling);
    PutTime(now_ns);
  }
  judge_->NameSibling(incident_id, sibling, now_ns);
}

void JournaledJudge::NoteVerdict(const Verdict& verdict) {
  if (!Begin()) return;
  out_.U64(journal::kVerdict);
  PutTime(verdict.evaluated_at_ns);
  out_.Fixed64(VerdictHash(verdict));
}

absl::Status JournaledJudge::Restore(std::string_view bytes) {
  Restart();
  return judge_->Restore(bytes);
}

bool JournaledJudge::Replace(std::unique_ptr<RunJudge> judge) {
  const bool begun = Begin();
  const bool restored = judge->Restore(judge_->Save()).ok();
  judge_ = std::move(judge);
  if (begun) {
    out_.U64(journal::kPolicy);
    PutPolicy();
  }
  return restored;
}

JournalPart JournaledJudge::Take(TimeNs now_ns) {
  JournalPart part{std::exchange(part_begins_, false), now_ns, out_.Take()};
  out_ = ByteWriter();
  if (part.begins) piece_begin_ns_ = now_ns;
  piece_bytes_ += part.bytes.size();
  const bool is_full = piece_bytes_ >= options_.piece_bytes || now_ns - piece_begin_ns_ >= options_.piece_ns || producers_.size() > journal::kMostProducers;
  if (has_begun_ && is_full) {
    has_begun_ = false;
    goes_on_ = true;
  }
  return part;
}

void JournaledJudge::Restart() {
  out_ = ByteWriter();
  has_begun_ = goes_on_ = part_begins_ = false;
}

}  // namespace lossgauge::state
