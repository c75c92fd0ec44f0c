#include "server/state/journal_reader.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/state/history_codec.h"
#include "server/state/journal_entry.h"

namespace lossgauge::state {
namespace {

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

TimeNs JournalReader::GetTime(ByteReader& in) {
  last_time_ns_ = static_cast<TimeNs>(static_cast<std::uint64_t>(last_time_ns_) + static_cast<std::uint64_t>(in.I64()));
  return last_time_ns_;
}

bool JournalReader::ReadBeginning(ByteReader& in) {
  if (in.U64() != journal::kVersion) return false;
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
    sample.producer = producers_.Find(number);
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

bool JournalReader::GetLiveness(ByteReader& in, LivenessReport* report) {
  report->producer = producers_.Find(in.U64());
  const std::uint64_t state = in.U64();
  if (report->producer == nullptr || state > static_cast<std::uint64_t>(ProducerState::kEnded)) return false;
  report->producer_state = static_cast<ProducerState>(state);
  report->closed = in.U64();
  report->heartbeat_age_ns = in.I64();
  report->enqueued_step = in.I64();
  report->published_step = in.I64();
  report->entered_step = in.I64();
  report->last_call = in.U64();
  report->last_call_age_ns = in.I64();
  report->phase = in.U64();
  report->phase_age_ns = in.I64();
  report->drained = in.Bool();
  report->time_ns = GetTime(in);
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
    if (!GetLiveness(in, &report)) return false;
    presence.producers.push_back(std::move(report));
  }
  if (!in.ok()) return false;
  sink_.OnPresence(presence);
  return true;
}

bool JournalReader::ReadProducer(ByteReader& in) {
  auto producer = GetProducer(run_, &in);
  if (producer == nullptr || producers_.size() > 2 * journal::kMostProducers) return false;
  producers_.Add(std::move(producer));
  return true;
}

bool JournalReader::ReadEvent(ByteReader& in) {
  ProducerEvent event;
  event.producer = producers_.Find(in.U64());
  GetEvent(&in, &event);
  event.receive_time_ns = GetTime(in);
  if (!in.ok() || event.producer == nullptr) return false;
  sink_.OnEvent(event);
  return true;
}

bool JournalReader::ReadLoss(ByteReader& in) {
  LossReport report;
  report.producer = producers_.Find(in.U64());
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

bool JournalReader::ReadAction(ByteReader& in) {
  LedgerEntry entry;
  entry.action = GetAction(in);
  for (std::string* text : {&entry.actor, &entry.comment, &entry.attempt}) *text = in.String();
  entry.time_ns = GetTime(in);
  if (in.ok()) sink_.OnAction(entry);
  return in.ok();
}

bool JournalReader::ReadAcknowledgement(ByteReader& in) {
  Acknowledgement acknowledgement;
  const std::string id = in.String();
  for (std::string* text : {&acknowledgement.by, &acknowledgement.comment}) *text = in.String();
  acknowledgement.time_ns = GetTime(in);
  if (in.ok()) sink_.OnAcknowledge(id, acknowledgement);
  return in.ok();
}

bool JournalReader::ReadMode(ByteReader& in) {
  const std::string mode = in.String();
  if (!in.ok() || (!mode.empty() && mode != "advise" && mode != "shadow")) return false;
  sink_.OnMode(mode);
  return true;
}

bool JournalReader::ReadSibling(ByteReader& in) {
  const std::string id = in.String();
  const std::string sibling = in.String();
  const TimeNs now_ns = GetTime(in);
  if (in.ok()) sink_.OnSibling(id, sibling, now_ns);
  return in.ok();
}

bool JournalReader::ReadPolicy(ByteReader& in) {
  PolicyView policy;
  if (!GetPolicy(in, &policy)) return false;
  sink_.OnPolicy(policy);
  return true;
}

bool JournalReader::ReadVerdict(ByteReader& in) {
  const TimeNs now_ns = GetTime(in);
  const std::uint64_t hash = in.Fixed64();
  if (in.ok()) sink_.OnVerdict(now_ns, hash);
  return in.ok();
}

bool JournalReader::ReadOne(std::uint64_t kind, ByteReader& in) {
  switch (kind) {
    case journal::kBeginning: return ReadBeginning(in);
    case journal::kProducer: return ReadProducer(in);
    case journal::kStep: return ReadStep(in);
    case journal::kEvent: return ReadEvent(in);
    case journal::kLoss: return ReadLoss(in);
    case journal::kPresence: return ReadPresence(in);
    case journal::kAction: return ReadAction(in);
    case journal::kAcknowledgement: return ReadAcknowledgement(in);
    case journal::kMode: return ReadMode(in);
    case journal::kSibling: return ReadSibling(in);
    case journal::kPolicy: return ReadPolicy(in);
    case journal::kVerdict: return ReadVerdict(in);
    default: return false;
  }
}

absl::Status JournalReader::Read(std::string_view part) {
  ByteReader in(part);
  while (in.ok() && !in.at_end()) {
    const std::uint64_t kind = in.U64();
    if (!has_begun_ && kind != journal::kBeginning) return absl::OkStatus();
    if (!ReadOne(kind, in)) {
      has_begun_ = false;
      return absl::InvalidArgumentError(absl::StrCat("an entry of kind ", kind, " in the judge's journal cannot be read"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lossgauge::state
