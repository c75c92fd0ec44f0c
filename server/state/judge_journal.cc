#include "server/state/judge_journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/history_codec.h"

namespace lossgauge::state {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMostProducers = 4096;  // of a piece

enum Kind : std::uint64_t {
  kBeginning = 1,
  kProducer = 2,
  kStep = 3,
  kEvent = 4,
  kLoss = 5,
  kPresence = 6,
  kAction = 7,
  kAcknowledgement = 8,
  kMode = 9,
  kSibling = 10,
  kPolicy = 11,
  kVerdict = 12,
};

// Wraps where hostile bytes would overflow.
TimeNs Before(TimeNs time_ns, std::int64_t by_ns) {
  return static_cast<TimeNs>(static_cast<std::uint64_t>(time_ns) - static_cast<std::uint64_t>(by_ns));
}

bool GetPolicy(ByteReader& in, PolicyView* policy) {
  auto decoded = DecodePolicy(in.String());
  if (decoded) *policy = *std::move(decoded);
  return decoded.has_value();
}

Action GetAction(ByteReader& in) {
  const std::uint64_t action = in.U64();
  return action >= 1 && action <= 5 ? static_cast<Action>(action) : Action::kUnknown;
}

}  // namespace

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
  out_.U64(kBeginning);
  out_.U64(kVersion);
  out_.Bool(std::exchange(goes_on_, false));
  PutPolicy();
  out_.String(judge_->Save());
  return true;
}

std::uint64_t JournaledJudge::Known(const std::shared_ptr<const ProducerInfo>& producer) {
  bool is_new = false;
  const std::uint64_t number = producers_.Number(producer, &is_new);
  if (!is_new) return number;
  out_.U64(kProducer);
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
    out_.U64(kStep);
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
    out_.U64(kEvent);
    out_.U64(number);
    PutEvent(event, &out_);
    PutTime(event.receive_time_ns);
  }
  judge_->OnEvent(event);
}

void JournaledJudge::OnLoss(const LossReport& report) {
  if (Begin()) {
    const std::uint64_t number = Known(report.producer);
    out_.U64(kLoss);
    out_.U64(number);
    out_.U64(static_cast<std::uint64_t>(report.reason));
    out_.U64(report.records);
    out_.U64(report.first_publication);
    out_.Bool(report.event_ring);
    PutTime(report.time_ns);
  }
  judge_->OnLoss(report);
}

void JournaledJudge::OnPresence(const Presence& presence) {
  if (presence.producers.size() > options_.max_ranks) GiveUp();
  if (Begin()) {
    for (const LivenessReport& report : presence.producers) (void)Known(report.producer);
    out_.U64(kPresence);
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
    for (const LivenessReport& report : presence.producers) {
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
  }
  judge_->OnPresence(presence);
}

void JournaledJudge::OnAction(const LedgerEntry& entry) {
  if (Begin()) {
    out_.U64(kAction);
    out_.U64(static_cast<std::uint64_t>(entry.action));
    for (const std::string* text : {&entry.actor, &entry.comment, &entry.attempt}) out_.String(*text);
    PutTime(entry.time_ns);
  }
  judge_->OnAction(entry);
}

bool JournaledJudge::Acknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement) {
  if (Begin()) {
    out_.U64(kAcknowledgement);
    for (const std::string* text : {&incident_id, &acknowledgement.by, &acknowledgement.comment}) out_.String(*text);
    PutTime(acknowledgement.time_ns);
  }
  return judge_->Acknowledge(incident_id, acknowledgement);
}

void JournaledJudge::SetMode(const std::string& mode) {
  if (Begin()) {
    out_.U64(kMode);
    out_.String(mode);
  }
  judge_->SetMode(mode);
}

void JournaledJudge::NameSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns) {
  if (Begin()) {
    out_.U64(kSibling);
    out_.String(incident_id);
    out_.String(sibling);
    PutTime(now_ns);
  }
  judge_->NameSibling(incident_id, sibling, now_ns);
}

void JournaledJudge::NoteVerdict(const Verdict& verdict) {
  if (!Begin()) return;
  out_.U64(kVerdict);
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
    out_.U64(kPolicy);
    PutPolicy();
  }
  return restored;
}

JournalPart JournaledJudge::Take(TimeNs now_ns) {
  JournalPart part{std::exchange(part_begins_, false), now_ns, out_.Take()};
  out_ = ByteWriter();
  if (part.begins) piece_begin_ns_ = now_ns;
  piece_bytes_ += part.bytes.size();
  const bool is_full = piece_bytes_ >= options_.piece_bytes || now_ns - piece_begin_ns_ >= options_.piece_ns || producers_.size() > kMostProducers;
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

TimeNs JournalReader::GetTime(ByteReader& in) {
  last_time_ns_ = static_cast<TimeNs>(static_cast<std::uint64_t>(last_time_ns_) + static_cast<std::uint64_t>(in.I64()));
  return last_time_ns_;
}

bool JournalReader::ReadBeginning(ByteReader& in) {
  if (in.U64() != kVersion) return false;
  JournalBeginning beginning;
  beginning.goes_on = in.Bool();
  if (!GetPolicy(in, &beginning.policy)) return false;
  beginning.judge = in.String();
  if (!in.ok()) return false;
  producers_.Clear();
  last_time_ns_ = 0;
  last_sequence_ = 0;
  has_begun_ = true;
  sink_.OnBeginning(beginning);
  return true;
}

bool JournalReader::ReadStep(ByteReader& in) {
  const std::uint64_t sequence = last_sequence_ += in.U64();
  const bool complete = in.Bool();
  std::vector<std::uint32_t> missing(in.Count());
  for (auto& rank : missing) rank = static_cast<std::uint32_t>(in.U64());
  std::optional<double> step_seconds;
  if (in.Bool()) step_seconds = in.F64();
  std::vector<RankSample> samples;
  for (std::size_t left = in.Count(); left > 0 && in.ok(); --left) {
    RankSample sample;
    const std::uint64_t number = in.U64();
    bool known = false;
    sample.producer = producers_.Find(number, &known);
    if (sample.producer == nullptr) return false;
    sample.publication = in.U64();
    sample.lost_before = in.U64();
    sample.receive_time_ns = GetTime(in);
    if (!producers_.GetRecord(number, &in, &sample.record) || sample.record.block != 0) return false;
    const bool fits = samples.empty() || (sample.record.step == samples.front().record.step && sample.producer->attempt == samples.front().producer->attempt &&
                                          sample.producer->layout.rank > samples.back().producer->layout.rank);
    if (!fits) return false;
    samples.push_back(std::move(sample));
  }
  if (!in.ok() || samples.empty()) return false;
  JoinedStep joined = JoinSamples(std::move(samples));
  joined.summary.sequence = sequence;
  joined.summary.complete = complete;
  joined.summary.missing_ranks = std::move(missing);
  joined.summary.step_seconds = step_seconds;
  sink_.OnStep(joined);
  return true;
}

bool JournalReader::ReadPresence(ByteReader& in) {
  Presence presence;
  presence.now_ns = GetTime(in);
  presence.newest_attempt = in.String();
  if (in.Bool()) presence.last_step = in.I64();
  presence.last_step_time_ns = Before(presence.now_ns, in.I64());
  presence.first_seen_ns = Before(presence.now_ns, in.I64());
  presence.expected_ranks.resize(in.Count());
  for (auto& rank : presence.expected_ranks) rank = static_cast<std::uint32_t>(in.U64());
  presence.records_lost = in.U64();
  presence.source_reachable = in.Bool();
  presence.unreachable_ranks = in.U64();
  presence.first_unreachable_rank = static_cast<std::uint32_t>(in.U64());
  for (std::size_t left = in.Count(); left > 0 && in.ok(); --left) {
    LivenessReport report;
    bool known = false;
    report.producer = producers_.Find(in.U64(), &known);
    const std::uint64_t state = in.U64();
    if (!known || report.producer == nullptr || state > static_cast<std::uint64_t>(ProducerState::kEnded)) return false;
    report.producer_state = static_cast<ProducerState>(state);
    report.closed = in.U64();
    report.heartbeat_age_ns = in.I64();
    report.enqueued_step = in.I64();
    report.published_step = in.I64();
    report.entered_step = in.I64();
    report.last_call = in.U64();
    report.last_call_age_ns = in.I64();
    report.phase = in.U64();
    report.phase_age_ns = in.I64();
    report.drained = in.Bool();
    report.time_ns = GetTime(in);
    presence.producers.push_back(std::move(report));
  }
  if (!in.ok()) return false;
  sink_.OnPresence(presence);
  return true;
}

bool JournalReader::ReadOne(std::uint64_t kind, ByteReader& in) {
  bool known = true;
  switch (kind) {
    case kBeginning: return ReadBeginning(in);
    case kProducer: {
      auto producer = GetProducer(run_, &in);
      if (producer == nullptr || producers_.size() > 2 * kMostProducers) return false;
      producers_.Add(std::move(producer));
      return true;
    }
    case kStep: return ReadStep(in);
    case kPresence: return ReadPresence(in);
    case kEvent: {
      ProducerEvent event;
      event.producer = producers_.Find(in.U64(), &known);
      GetEvent(&in, &event);
      event.receive_time_ns = GetTime(in);
      if (!in.ok() || event.producer == nullptr) return false;
      sink_.OnEvent(event);
      return true;
    }
    case kLoss: {
      LossReport report;
      report.producer = producers_.Find(in.U64(), &known);
      const std::uint64_t reason = in.U64();
      report.records = in.U64();
      report.first_publication = in.U64();
      report.event_ring = in.Bool();
      report.time_ns = GetTime(in);
      if (!in.ok() || report.producer == nullptr || reason >= static_cast<std::uint64_t>(LossReason::kCount)) return false;
      report.reason = static_cast<LossReason>(reason);
      sink_.OnLoss(report);
      return true;
    }
    case kAction: {
      LedgerEntry entry;
      entry.action = GetAction(in);
      for (std::string* text : {&entry.actor, &entry.comment, &entry.attempt}) *text = in.String();
      entry.time_ns = GetTime(in);
      if (in.ok()) sink_.OnAction(entry);
      return in.ok();
    }
    case kAcknowledgement: {
      Acknowledgement acknowledgement;
      const std::string id = in.String();
      for (std::string* text : {&acknowledgement.by, &acknowledgement.comment}) *text = in.String();
      acknowledgement.time_ns = GetTime(in);
      if (in.ok()) sink_.OnAcknowledge(id, acknowledgement);
      return in.ok();
    }
    case kMode: {
      const std::string mode = in.String();
      if (!in.ok() || (!mode.empty() && mode != "advise" && mode != "shadow")) return false;
      sink_.OnMode(mode);
      return true;
    }
    case kSibling: {
      const std::string id = in.String();
      const std::string sibling = in.String();
      const TimeNs now_ns = GetTime(in);
      if (in.ok()) sink_.OnSibling(id, sibling, now_ns);
      return in.ok();
    }
    case kPolicy: {
      PolicyView policy;
      if (!GetPolicy(in, &policy)) return false;
      sink_.OnPolicy(policy);
      return true;
    }
    case kVerdict: {
      const TimeNs now_ns = GetTime(in);
      const std::uint64_t hash = in.Fixed64();
      if (in.ok()) sink_.OnVerdict(now_ns, hash);
      return in.ok();
    }
    default: return false;
  }
}

absl::Status JournalReader::Read(std::string_view part) {
  ByteReader in(part);
  while (in.ok() && !in.at_end()) {
    const std::uint64_t kind = in.U64();
    if (!has_begun_ && kind != kBeginning) return absl::OkStatus();
    if (!ReadOne(kind, in)) {
      has_begun_ = false;
      return absl::InvalidArgumentError(absl::StrCat("an entry of kind ", kind, " in the judge's journal cannot be read"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lossgauge::state
