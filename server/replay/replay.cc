#include "server/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/detect/judge.h"
#include "server/replay/no_store.h"
#include "server/replay/observed_judge.h"
#include "server/replay/step_record.h"
#include "server/state/run_book.h"

namespace lossgauge::replay {
namespace {

constexpr state::TimeNs kSecond = 1'000'000'000;
constexpr state::TimeNs kBegin = 1'700'000'000 * kSecond;
constexpr state::TimeNs kBootBegin = 1'000 * kSecond;
constexpr double kLongestStepSeconds = 86'400;
constexpr std::size_t kMostKept = 65'536;
constexpr int kPointsAFlush = 256;  // what the book would write to a store is dropped so often

int Badness(state::Action action) {
  switch (action) {
    case state::Action::kContinue: return 1;
    case state::Action::kWatch: return 2;
    case state::Action::kRestart: return 3;
    case state::Action::kHalt: return 4;
    case state::Action::kUnknown: break;
  }
  return 0;
}

}  // namespace

struct Replay::Parts final : public JudgeObserver {
  Parts(const std::string& run, const detect::PolicySet& policies)
      : run_name(run), judges(policies), observed(&judges, this), book(Options(), &observed, &store, kBegin) {}

  static state::RunBookOptions Options() {
    state::RunBookOptions options;
    // Readers have sorted out steps that jump; what they let pass is meant.
    options.run.join.max_step_jump = std::int64_t{1} << 60;
    options.run.max_attempts = 1 << 20;
    options.max_recent_steps = 64;
    return options;
  }

  void BeginAttempt(const LogPoint& point);
  void EndAttempt();
  void Look(state::ProducerState producer_state);
  void Event(std::uint64_t kind, std::int64_t step, const std::string& text, double value, std::uint64_t count);
  void Advance();
  void OnIncidents(const std::vector<state::Incident>& changed) override;
  void OnVerdict(const state::Verdict& verdict) override;

  const std::string run_name;
  detect::DetectorJudgeFactory judges;
  ObservedJudgeFactory observed;
  NoStore store;
  state::RunBook book;

  std::shared_ptr<const state::ProducerInfo> producer;
  std::uint32_t attempt = 0;
  state::TimeNs now_ns = kBegin;
  state::TimeNs boot_ns = kBootBegin;
  std::uint64_t next_publication = 1;
  std::uint64_t next_event = 1;
  lg_step_record last{};
  int until_flush = kPointsAFlush;

  Moment now;
  bool at_end = false;
  std::unordered_map<std::string, std::size_t> incident_index;
  std::optional<state::Verdict> verdict;
  ReplayResult result;
};

void Replay::Parts::Look(state::ProducerState producer_state) {
  state::LivenessReport report;
  report.producer = producer;
  report.producer_state = producer_state;
  report.closed = producer_state == state::ProducerState::kEnded ? LG_CLOSE_FINISHED : LG_CLOSE_OPEN;
  report.enqueued_step = report.published_step = report.entered_step = next_publication > 1 ? last.step : -1;
  report.last_call = LG_CALL_PUBLISH;
  report.drained = true;
  report.time_ns = now_ns;
  book.OnLiveness(report);
}

void Replay::Parts::Event(std::uint64_t kind, std::int64_t step, const std::string& text, double value, std::uint64_t count) {
  if (producer == nullptr) return;
  state::ProducerEvent event;
  event.producer = producer;
  event.kind = kind;
  event.step = step;
  event.text = text;
  event.value = value;
  event.count = count;
  event.publication = next_event++;
  event.receive_time_ns = now_ns;
  book.OnEvent(std::move(event));
}

void Replay::Parts::EndAttempt() {
  if (producer == nullptr) return;
  Event(LG_EVENT_END, last.step, "end of the log", 0, LG_CLOSE_FINISHED);
  Look(state::ProducerState::kEnded);
}

void Replay::Parts::BeginAttempt(const LogPoint& point) {
  EndAttempt();
  attempt = point.attempt;
  auto info = std::make_shared<state::ProducerInfo>();
  info->segment = {{attempt, 1}};
  info->run = run_name;
  info->attempt = point.attempt_name.empty() ? absl::StrCat(attempt) : point.attempt_name;
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
  // A log that begins in the middle goes on from a step before it.
  if (point.step > point.interval_steps) Event(LG_EVENT_RESUME, point.step - point.interval_steps, "", 0, 0);
}

void Replay::Parts::Advance() {
  book.Advance(now_ns, true);
  if (--until_flush > 0) return;
  until_flush = kPointsAFlush;
  (void)book.BuildTransaction(now_ns);
  book.OnCommitted();
  (void)book.BuildSnapshot(now_ns, {});  // lets go of steps that only a snapshot would show
}

void Replay::Parts::OnIncidents(const std::vector<state::Incident>& changed) {
  for (const state::Incident& incident : changed) {
    const auto [it, inserted] = incident_index.try_emplace(incident.id, result.incidents.size());
    if (inserted) {
      if (result.incidents.size() >= kMostKept) {
        incident_index.erase(it);
        ++result.incidents_left_out;
        continue;
      }
      result.incidents.emplace_back().first = now;
    }
    IncidentLife& life = result.incidents[it->second];
    life.worst = std::max(life.worst, incident.severity);
    if (incident.severity > state::Severity::kInfo && !life.warned) life.warned = now;
    if (incident.severity == state::Severity::kCritical && !life.critical) life.critical = now;
    if (!incident.open && !life.resolved) life.resolved = now;
    if (incident.open) life.resolved.reset();
    life.incident = incident;
  }
}

void Replay::Parts::OnVerdict(const state::Verdict& said) {
  if (!at_end) {
    if (Badness(said.action) > Badness(result.worst)) result.worst = said.action;
    result.before_end = said;
  }
  if (verdict && !state::DiffersInSubstance(*verdict, said)) return;
  verdict = said;
  if (result.verdicts.size() < kMostKept) {
    result.verdicts.push_back({now, said});
  } else {
    ++result.verdicts_left_out;
  }
}

Replay::Replay(const std::string& run, const detect::PolicySet& policies) : parts_(std::make_unique<Parts>(run, policies)) {}
Replay::~Replay() = default;

void Replay::OnPoint(const LogPoint& point) {
  Parts& p = *parts_;
  const bool knows_time = point.step_seconds && *point.step_seconds > 0 && *point.step_seconds <= kLongestStepSeconds;
  const double steps = static_cast<double>(std::clamp<std::int64_t>(point.interval_steps, 1, 1'000'000));
  const double seconds = knows_time ? std::min(*point.step_seconds * steps, kLongestStepSeconds) : 1;
  p.now_ns += std::max<state::TimeNs>(1000, static_cast<state::TimeNs>(seconds * 1e9));
  p.now.point = point.index;
  p.now.line = point.line;
  p.now.step = point.step;
  if (point.attempt != p.attempt) {
    p.BeginAttempt(point);
    p.now.attempt = p.producer->attempt;
  }
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
  sample.interval_steps = static_cast<std::uint64_t>(point.interval_steps);
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

ReplayResult Replay::Finish() {
  Parts& p = *parts_;
  p.at_end = true;
  p.now_ns += 1000;
  p.EndAttempt();
  p.Advance();
  return std::move(p.result);
}

}  // namespace lossgauge::replay
