#include "server/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/detect/judge.h"
#include "server/replay/attempt_names.h"
#include "server/replay/no_store.h"
#include "server/replay/observed_judge.h"
#include "server/replay/replay_record.h"
#include "server/replay/step_record.h"
#include "server/state/run_book.h"

namespace lossgauge::replay {
namespace {

constexpr state::TimeNs kSecond = 1'000'000'000;
constexpr state::TimeNs kBegin = 1'700'000'000 * kSecond;
constexpr state::TimeNs kBootBegin = 1'000 * kSecond;
constexpr double kLongestStepSeconds = 86'400;
constexpr state::TimeNs kLongestClock = kBegin + 3'000'000'000 * kSecond;  // a century; the rest of what 64 bits hold goes by the second
constexpr int kPointsAFlush = 256;  // what the book would write to a store is dropped so often

LogJobEvent EndOfLog() {
  LogJobEvent end;
  end.text = "end of the log";
  return end;
}

}  // namespace

struct Replay::Parts {
  Parts(const std::string& run, const detect::PolicySet& policies, std::size_t most)
      : run_name(run), record(most), judges(policies), observed(&judges, &record), book(Options(), &observed, &store, kBegin) {}

  static state::RunBookOptions Options() {
    state::RunBookOptions options;
    // Readers have sorted out steps that jump; what they let pass is meant.
    options.run.join.max_step_jump = std::int64_t{1} << 60;
    options.run.max_attempts = 256;
    options.max_recent_steps = 64;
    return options;
  }

  void BeginAttempt(const LogPoint& point);
  void EndAttempt(const LogJobEvent& end);
  void Look(state::ProducerState producer_state);
  void Event(std::uint64_t kind, std::int64_t step, const std::string& text, double value, std::uint64_t count, std::uint64_t phase = LG_PHASE_TRAIN);
  void Advance();

  const std::string run_name;
  ReplayRecord record;
  detect::DetectorJudgeFactory judges;
  ObservedJudgeFactory observed;
  NoStore store;
  state::RunBook book;

  std::shared_ptr<const state::ProducerInfo> producer;
  std::uint32_t attempt = 0;
  std::uint64_t phase = LG_PHASE_TRAIN;
  std::uint64_t closed = LG_CLOSE_OPEN;
  std::optional<LogJobEvent> resume;  // of the attempt that is about to begin
  AttemptNames attempt_names;
  state::TimeNs now_ns = kBegin;
  state::TimeNs boot_ns = kBootBegin;
  std::uint64_t next_publication = 1;
  std::uint64_t next_event = 1;
  lg_step_record last{};
  int until_flush = kPointsAFlush;
};

void Replay::Parts::Look(state::ProducerState producer_state) {
  state::LivenessReport report;
  report.producer = producer;
  report.producer_state = producer_state;
  report.closed = closed;
  report.phase = phase;
  report.enqueued_step = report.published_step = report.entered_step = next_publication > 1 ? last.step : -1;
  report.last_call = LG_CALL_PUBLISH;
  report.drained = true;
  report.time_ns = now_ns;
  book.OnLiveness(report);
}

void Replay::Parts::Event(std::uint64_t kind, std::int64_t step, const std::string& text, double value, std::uint64_t count, std::uint64_t event_phase) {
  if (producer == nullptr) return;
  state::ProducerEvent event;
  event.producer = producer;
  event.kind = kind;
  event.step = step;
  event.text = text;
  event.value = value;
  event.count = count;
  event.phase = event_phase;
  event.publication = next_event++;
  event.receive_time_ns = now_ns;
  book.OnEvent(std::move(event));
}

void Replay::Parts::EndAttempt(const LogJobEvent& end) {
  if (producer == nullptr || closed != LG_CLOSE_OPEN) return;
  closed = end.failed ? LG_CLOSE_FAILED : LG_CLOSE_FINISHED;
  Event(LG_EVENT_END, last.step, end.text, 0, closed);
  Look(state::ProducerState::kEnded);
}

void Replay::Parts::BeginAttempt(const LogPoint& point) {
  EndAttempt(EndOfLog());
  attempt = point.attempt;
  phase = LG_PHASE_TRAIN;
  closed = LG_CLOSE_OPEN;
  auto info = std::make_shared<state::ProducerInfo>();
  info->segment = {{attempt, 1}};
  info->run = run_name;
  info->attempt = attempt_names.Name(point);
  info->attempt_start_ns = now_ns;
  info->layout.world_size = 1;
  info->layout.dp = info->layout.tp = info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
  info->layout.has_loss = 1;
  info->block_names[0] = "train";
  producer = std::move(info);
  next_publication = next_event = 1;
  last = {};
  boot_ns = kBootBegin;
  book.OnProducer(producer);
  Look(state::ProducerState::kLive);
  if (const auto goes_on = ResumeBefore(point, resume)) Event(LG_EVENT_RESUME, goes_on->step, goes_on->text, 0, 0);
  resume.reset();
}

void Replay::Parts::Advance() {
  book.Advance(now_ns, true);
  if (--until_flush > 0) return;
  until_flush = kPointsAFlush;
  (void)book.BuildTransaction(now_ns);
  book.OnCommitted();
  (void)book.BuildSnapshot(now_ns, {});  // lets go of steps that only a snapshot would show
}

Replay::Replay(const std::string& run, const detect::PolicySet& policies, std::size_t most_kept)
    : parts_(std::make_unique<Parts>(run, policies, most_kept)) {}
Replay::~Replay() = default;

void Replay::OnPoint(const LogPoint& point) {
  Parts& p = *parts_;
  if (point.attempt != p.attempt && p.attempt_names.size() >= kMaxAttempts) {
    ++p.record.result.points_left_out;
    return;
  }
  const bool knows_time = point.step_seconds && *point.step_seconds > 0 && *point.step_seconds <= kLongestStepSeconds && p.now_ns < kLongestClock;
  const double steps = static_cast<double>(std::clamp<std::int64_t>(point.interval_steps, 1, 1'000'000));
  const double seconds = knows_time ? std::min(*point.step_seconds * steps, kLongestStepSeconds) : 1;
  p.now_ns += std::max<state::TimeNs>(1000, static_cast<state::TimeNs>(seconds * 1e9));
  p.record.now.point = point.index;
  p.record.now.line = point.line;
  p.record.now.step = point.step;
  if (point.attempt != p.attempt) {
    p.BeginAttempt(point);
    p.record.now.attempt = p.producer->attempt;
  }
  p.closed = LG_CLOSE_OPEN;  // whatever was said of an end: it goes on
  state::RankSample sample;
  sample.producer = p.producer;
  sample.record = MakeStepRecord(point);
  AddToTotals(p.last, &sample.record);
  if (knows_time) {  // else there is no clock in the record, and no time of a step
    p.boot_ns += static_cast<std::int64_t>(seconds * 1e9);
    sample.record.boot_ns = p.boot_ns;
  }
  sample.publication = p.next_publication++;
  sample.receive_time_ns = p.now_ns;
  p.last = sample.record;
  p.book.OnSample(std::move(sample));
  p.Look(state::ProducerState::kLive);
  p.Advance();
}

void Replay::OnEvaluation(const LogEvaluation& evaluation) {
  Parts& p = *parts_;
  p.Event(LG_EVENT_EVALUATION, evaluation.step.value_or(p.last.step), "", evaluation.loss_nats, 0);
}

void Replay::OnCheckpoint(const LogCheckpoint& checkpoint) { parts_->Event(LG_EVENT_CHECKPOINT, checkpoint.step, checkpoint.path, 0, 0); }

void Replay::OnJobEvent(const LogJobEvent& event) {
  Parts& p = *parts_;
  switch (event.kind) {
    case LogJobEvent::kResume: p.resume = event; return;
    case LogJobEvent::kPhaseBegin:
    case LogJobEvent::kPhaseEnd: {
      const bool begins = event.kind == LogJobEvent::kPhaseBegin;
      p.phase = begins ? event.phase : std::uint64_t{LG_PHASE_TRAIN};
      p.Event(begins ? LG_EVENT_PHASE_BEGIN : LG_EVENT_PHASE_END, event.step, "", 0, 0, event.phase);
      return;
    }
    case LogJobEvent::kEnd:
      // A clean end waits: what is said of it says nothing about the steps, and there may be none behind it.
      if (!event.failed) return;
      p.now_ns += 1000;
      p.EndAttempt(event);
      p.Advance();
      return;
  }
}

ReplayResult Replay::Finish() {
  Parts& p = *parts_;
  p.record.at_end = true;
  p.now_ns += 1000;
  p.EndAttempt(EndOfLog());
  p.Advance();
  return std::move(p.record.result);
}

}  // namespace lossgauge::replay
