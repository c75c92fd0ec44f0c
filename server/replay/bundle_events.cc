#include "server/replay/bundle_events.h"

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "proto/lossgauge/ring/ring_abi.h"
#include "server/replay/flat_object.h"
#include "server/replay/line_reader.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kMaxTimeBytes = 64;

std::string Cut(std::string text, std::size_t most) {
  if (text.size() > most) {
    text.resize(most);
    text.shrink_to_fit();
  }
  return text;
}

std::uint64_t PhaseOf(std::string_view name) {
  constexpr std::string_view kNames[] = {"train", "warm_up", "evaluation", "checkpoint", "data_loading"};
  for (std::uint64_t phase = 0; phase < std::size(kNames); ++phase) {
    if (kNames[phase] == name) return phase;
  }
  return LG_PHASE_OTHER;
}

}  // namespace

// "2026-03-04T05:06:07Z" and "2026-03-04T05:06:07.250Z": the point sorts before the Z, as it should not.
bool BundleEvents::Before(std::string_view a, std::string_view b) {
  const auto cut = [](std::string_view time) { return time.ends_with('Z') ? time.substr(0, time.size() - 1) : time; };
  return cut(a) < cut(b);
}

bool BundleEvents::Has(std::size_t bytes) {
  if (bytes > kMaxBytes - bytes_) return false;
  bytes_ += bytes;
  return true;
}

void BundleEvents::Read(ByteSource* content, LogReport* report) {
  LogReport lines_report;
  LineReader lines(content, &lines_report);
  for (LogLine line; lines.Next(&line);) {
    FlatObject object;
    if (!object.Parse(line.text)) {
      report->Count(Oddity::kUnreadable, line.number);
      continue;
    }
    const std::string kind = object.Text("kind");
    const auto step = object.Whole<std::int64_t>("step");
    const auto rank = object.Whole<std::uint32_t>("rank").value_or(0);
    std::string text = Cut(object.Text("text"), LG_EVENT_TEXT_BYTES);
    const std::size_t text_bytes = text.size();
    Event event{Cut(object.Text("receiveTime"), kMaxTimeBytes), {}};
    LogJobEvent told;
    told.line = line.number;
    told.step = step.value_or(-1);
    if (kind == "checkpoint") {
      if (!step) continue;
      event.what = LogCheckpoint{line.number, *step, std::move(text)};
    } else if (kind == "evaluation") {
      event.what = LogEvaluation{line.number, step, object.Number("value").value_or(std::numeric_limits<double>::quiet_NaN())};
    } else if (kind == "phase_begin" || kind == "phase_end") {
      told.kind = kind == "phase_begin" ? LogJobEvent::kPhaseBegin : LogJobEvent::kPhaseEnd;
      told.phase = PhaseOf(object.Text("phase"));
      event.what = told;
    } else if (kind == "resume" || kind == "end") {
      told.kind = kind == "resume" ? LogJobEvent::kResume : LogJobEvent::kEnd;
      told.failed = object.Whole<std::uint64_t>("count").value_or(0) == LG_CLOSE_FAILED;
      told.text = std::move(text);
      event.what = std::move(told);
    } else {
      continue;
    }
    std::string name = object.Text("attempt");
    if (!Has(sizeof(Event) + sizeof(Attempt) + name.size() + event.time.size() + text_bytes)) {
      report->Count(Oddity::kTooManyEvents, line.number);
      continue;
    }
    Attempt& attempt = attempts_[std::move(name)];
    const auto* job = std::get_if<LogJobEvent>(&event.what);
    if (job == nullptr) {
      attempt.events.push_back(std::move(event));
    } else if (job->kind == LogJobEvent::kResume) {
      if (!attempt.resume) attempt.resume = *job;
    } else if (job->kind == LogJobEvent::kEnd) {
      if (!attempt.end || (job->failed && !attempt.end->failed)) attempt.end = *job;  // one rank that failed is enough
    } else if (attempt.phase_rank.value_or(rank) == rank) {
      attempt.phase_rank = rank;
      attempt.events.push_back(std::move(event));
    }
  }
}

std::optional<LogJobEvent> BundleEvents::TakeResume(const std::string& attempt) {
  const auto found = attempts_.find(attempt);
  return found == attempts_.end() ? std::nullopt : std::exchange(found->second.resume, std::nullopt);
}

void BundleEvents::Tell(const std::string& attempt, const std::optional<std::string>& time, LogReport* report, LogSink* sink) {
  const auto found = attempts_.find(attempt);
  if (found == attempts_.end()) return;
  std::deque<Event>& events = found->second.events;
  for (; !events.empty() && (!time || Before(events.front().time, *time)); events.pop_front()) {
    const auto& what = events.front().what;
    if (const auto* checkpoint = std::get_if<LogCheckpoint>(&what)) {
      ++report->checkpoints;
      sink->OnCheckpoint(*checkpoint);
    } else if (const auto* job = std::get_if<LogJobEvent>(&what)) {
      sink->OnJobEvent(*job);
    } else if (const auto& evaluation = std::get<LogEvaluation>(what); std::isfinite(evaluation.loss_nats)) {
      ++report->evaluations;
      sink->OnEvaluation(evaluation);
    }
  }
  if (time) return;
  if (const auto end = std::exchange(found->second.end, std::nullopt)) sink->OnJobEvent(*end);
}

void BundleEvents::Drop(const std::string& attempt, const std::string& time) {
  const auto found = attempts_.find(attempt);
  if (found == attempts_.end()) return;
  std::deque<Event>& events = found->second.events;
  while (!events.empty() && Before(events.front().time, time)) events.pop_front();
}

}  // namespace lossgauge::replay
