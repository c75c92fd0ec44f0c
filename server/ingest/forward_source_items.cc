// What a batch says of its producers: each publication is handed over once, and what will never come is counted as lost.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/ring_validate.h"
#include "server/ingest/forward_source.h"

namespace lossgauge::ingest {

using state::LossReason;

state::TimeNs ForwardSource::BatchTimes::Ours(std::uint64_t sender_ns) const {
  if (sender_ns == 0 || sender_ns >= sent_ns) return now_ns;
  return now_ns - static_cast<state::TimeNs>(std::min<std::uint64_t>(sent_ns - sender_ns, static_cast<std::uint64_t>(now_ns)));
}

void ForwardSource::ReportLoss(Producer* producer, bool events, LossReason reason, std::uint64_t first, std::uint64_t records, state::TimeNs time_ns) {
  state::LossReport report;
  report.producer = producer->info;
  report.reason = reason;
  report.records = records;
  report.first_publication = first;
  report.event_ring = events;
  report.time_ns = time_ns;
  sink_->OnLoss(report);
  if (!events) producer->lost_before += records;
}

void ForwardSource::CountGap(Producer* producer, bool events, std::uint64_t first, state::TimeNs now_ns) {
  std::uint64_t* next = events ? &producer->next_events : &producer->next_steps;
  bool* is_new = events ? &producer->are_events_new : &producer->are_steps_new;
  if (first > *next && !*is_new) ReportLoss(producer, events, LossReason::kSpool, *next, first - *next, now_ns);
  *next = std::max(*next, first);
  if (*is_new && !events && first == 1) producer->are_events_new = false;
  *is_new = false;
}

void ForwardSource::Hold(Unacknowledged* held, Producer* producer) {
  const Held now = {producer->info->segment, producer->next_steps, producer->next_events};
  if (producer->held_by == held->number) {
    held->held[producer->held_at] = now;
    return;
  }
  producer->held_by = held->number;
  producer->held_at = held->held.size();
  held->held.push_back(now);
}

void ForwardSource::TakeStep(Sender* sender, Producer* producer, std::uint64_t publication, const char* words, state::TimeNs received_ns,
                             state::TimeNs now_ns) {
  if (publication < producer->next_steps) {
    ++stats_.ingest["records_repeated"];
    return;
  }
  CountGap(producer, false, publication, now_ns);
  producer->next_steps = publication + 1;
  ReadStep(words, sender->step_words, &sample_.record);
  if (const auto judged = ring::ValidateRecord(sample_.record); judged != ring::RecordState::kValid) {
    Refuse(sender, "bad_record", absl::StrCat("a record of ", Described(*producer->info), " is ", ring::RecordStateName(judged)));
    ReportLoss(producer, false, LossReason::kInvalid, publication, 1, now_ns);
    return;
  }
  sample_.producer = producer->info;
  sample_.publication = publication;
  sample_.lost_before = std::exchange(producer->lost_before, 0);
  sample_.receive_time_ns = received_ns;
  sample_.arrival_time_ns = now_ns;
  sink_->OnSample(std::move(sample_));
  result_.oldest_age_ns = std::max(result_.oldest_age_ns, now_ns - received_ns);
  ++result_.records;
}

absl::Status ForwardSource::ReadSteps(Sender* sender, const v1::Item::StepRecords& item, const BatchTimes& times, Unacknowledged* held) {
  const std::size_t bytes = std::size_t{sender->step_words} * 8;
  if (item.words().empty() || item.words().size() % bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("steps.words: expected a multiple of ", bytes, " bytes, got ", item.words().size()));
  }
  const std::size_t count = item.words().size() / bytes;
  if (item.first_publication() == 0 || item.first_publication() > kMaxPublication) {
    return absl::InvalidArgumentError(absl::StrCat("steps.first_publication: expected 1 to 2^44, got ", item.first_publication()));
  }
  const auto found = Find(sender, item.producer(), "steps", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) {
    stats_.ingest["records_refused"] += count;
    return absl::OkStatus();
  }
  for (std::size_t i = 0; i < count; ++i) {
    TakeStep(sender, producer, item.first_publication() + i, item.words().data() + i * bytes, times.Ours(item.received_ns()), times.now_ns);
  }
  Hold(held, producer);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadEvent(Sender* sender, const v1::Item::EventRecord& item, const BatchTimes& times, Unacknowledged* held) {
  if (item.publication() == 0 || item.publication() > kMaxPublication) {
    return absl::InvalidArgumentError(absl::StrCat("event.publication: expected 1 to 2^44, got ", item.publication()));
  }
  const auto found = Find(sender, item.producer(), "event", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) {
    ++stats_.ingest["records_refused"];
    return absl::OkStatus();
  }
  if (item.publication() < producer->next_events) {
    ++stats_.ingest["records_repeated"];
    Hold(held, producer);
    return absl::OkStatus();
  }
  CountGap(producer, true, item.publication(), times.now_ns);
  producer->next_events = item.publication() + 1;
  state::ProducerEvent event = ingest::ReadEvent(item);
  if (event.kind == 0 || event.step < -1 || event.step > ring::kMaxStep) {
    Refuse(sender, "bad_record", absl::StrCat("an event of ", Described(*producer->info), " has kind ", event.kind, " and step ", event.step));
    ReportLoss(producer, true, LossReason::kInvalid, item.publication(), 1, times.now_ns);
  } else {
    event.producer = producer->info;
    event.receive_time_ns = times.Ours(item.received_ns());
    sink_->OnEvent(std::move(event));
    ++result_.records;
  }
  Hold(held, producer);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadLost(Sender* sender, const v1::Item::LostRange& item, const BatchTimes& times, Unacknowledged* held) {
  if (item.first_publication() == 0 || item.first_publication() > kMaxPublication || item.records() == 0 || item.records() > kMaxLostRecords) {
    return absl::InvalidArgumentError(absl::StrCat("lost: ", item.records(), " records from publication ", item.first_publication(), " make no sense"));
  }
  const auto found = Find(sender, item.producer(), "lost", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) return absl::OkStatus();
  std::uint64_t* next = item.events() ? &producer->next_events : &producer->next_steps;
  const std::uint64_t end = item.first_publication() + item.records();
  if (end > *next) {
    CountGap(producer, item.events(), item.first_publication(), times.now_ns);
    const std::uint64_t first = std::max(item.first_publication(), *next);
    ReportLoss(producer, item.events(), ReadLossReason(item.reason()), first, end - first, times.Ours(item.noticed_ns()));
    *next = end;
  }
  Hold(held, producer);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadLiveness(Sender* sender, const v1::Item::Liveness& item, const BatchTimes& times) {
  const auto found = Find(sender, item.producer(), "liveness", times.now_ns);
  if (!found.ok()) return found.status();
  Producer* producer = *found;
  if (producer == nullptr) return absl::OkStatus();
  state::LivenessReport report = ingest::ReadLiveness(item);
  report.producer = producer->info;
  report.time_ns = times.Ours(item.seen_ns());
  producer->alive = report.producer_state == state::ProducerState::kLive || report.producer_state == state::ProducerState::kFrozen;
  // What is over makes room, here as in the book; what comes back needs it again.
  if (!producer->alive && report.drained) {
    Release(producer);
  } else if (!Claim(producer, times.now_ns)) {
    return absl::OkStatus();
  }
  sink_->OnLiveness(report);
  return absl::OkStatus();
}

absl::Status ForwardSource::ReadItem(Sender* sender, const v1::Item& item, const BatchTimes& times, Unacknowledged* held) {
  switch (item.kind_case()) {
    case v1::Item::kProducer: return TellProducer(sender, item.producer(), times.now_ns);
    case v1::Item::kSteps: return ReadSteps(sender, item.steps(), times, held);
    case v1::Item::kEvent: return ReadEvent(sender, item.event(), times, held);
    case v1::Item::kLost: return ReadLost(sender, item.lost(), times, held);
    case v1::Item::kLiveness: return ReadLiveness(sender, item.liveness(), times);
    case v1::Item::kGone: {
      // Its cursor stays for as long as somebody might send it again.
      if (Producer* producer = sender->by_number.contains(item.gone()) ? sender->by_number[item.gone()] : nullptr; producer != nullptr && producer->owner == sender) producer->alive = false;
      sender->by_number.erase(item.gone());
      return absl::OkStatus();
    }
    case v1::Item::KIND_NOT_SET: break;
  }
  ++stats_.ingest["items_unknown"];  // of a later version
  return absl::OkStatus();
}

}  // namespace lossgauge::ingest
