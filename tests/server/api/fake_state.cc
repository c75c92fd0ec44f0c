#include "tests/server/api/fake_state.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "proto/lossgauge/ring/fixed128.h"

namespace lossgauge::testing {

absl::StatusOr<std::vector<state::StepSummary>> FakeHistory::ReadSteps(const state::StepQuery& query) {
  ++reads;
  if (on_read_steps) on_read_steps();
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  std::vector<state::StepSummary> found;
  for (const state::StepSummary& step : steps) {
    if (step.sequence <= query.after_sequence) continue;
    if (!query.attempt.empty() && step.attempt != query.attempt) continue;
    if (step.thinned && !query.thinned) continue;
    const std::int64_t first = step.thinned ? step.thinned->first_step : step.step;
    if ((query.first_step && step.step < *query.first_step) || (query.last_step && first > *query.last_step)) continue;
    found.push_back(step);
  }
  if (query.newest_first) std::reverse(found.begin(), found.end());
  if (found.size() > static_cast<std::size_t>(query.limit)) found.resize(static_cast<std::size_t>(query.limit));
  return found;
}

absl::StatusOr<std::vector<state::Incident>> FakeHistory::ReadIncidents(const std::string& run, bool open_only, int limit, int offset) {
  ++reads;
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  std::vector<state::Incident> found;
  for (const state::Incident& incident : incidents) {
    if (incident.run != run || (open_only && !incident.open)) continue;
    if (offset-- > 0) continue;
    if (limit-- <= 0) break;
    found.push_back(incident);
  }
  return found;
}

absl::StatusOr<std::optional<state::Incident>> FakeHistory::FindIncident(const std::string& run, const std::string& id) {
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  for (const state::Incident& incident : incidents) {
    if (incident.run == run && incident.id == id) return incident;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<state::Verdict>> FakeHistory::ReadVerdicts(const std::string&, int limit, int offset) {
  ++reads;
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  std::vector<state::Verdict> found;
  for (const state::Verdict& verdict : verdicts) {
    if (offset-- > 0) continue;
    if (verdict.policy_version == "damaged") continue;
    if (limit-- <= 0) break;
    found.push_back(verdict);
  }
  return found;
}

absl::StatusOr<state::EventPage> FakeHistory::ReadEvents(const std::string& run, std::int64_t after_id, int limit) {
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  state::EventPage page;
  page.last_id = after_id;
  for (std::size_t i = static_cast<std::size_t>(after_id); i < events.size(); ++i) {
    if (events[i].producer != nullptr && events[i].producer->run != run) continue;
    page.more = limit-- == 0;
    if (page.more) break;
    page.last_id = static_cast<std::int64_t>(i) + 1;
    if (events[i].producer == nullptr) {
      ++page.damaged;
    } else {
      page.events.emplace_back(page.last_id, events[i]);
    }
  }
  return page;
}

absl::StatusOr<std::vector<state::LedgerEntry>> FakeHistory::ReadLedger(const std::string&) {
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  return ledger;
}

absl::StatusOr<std::vector<state::StoredRun>> FakeHistory::ReadRuns(int limit) {
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  std::vector<state::StoredRun> found = runs;
  if (found.size() > static_cast<std::size_t>(limit)) found.resize(static_cast<std::size_t>(limit));
  return found;
}

absl::StatusOr<std::optional<state::StoredRun>> FakeHistory::FindRun(const std::string& run) {
  std::lock_guard lock(mutex);
  if (!error.ok()) return error;
  for (const state::StoredRun& stored : runs) {
    if (stored.run == run) return stored;
  }
  return std::nullopt;
}

state::StepSummary MakeStep(std::uint64_t sequence, std::int64_t step, double loss_nats) {
  state::StepSummary summary;
  summary.sequence = sequence;
  summary.attempt = "a1";
  summary.step = step;
  summary.receive_time_ns = kNow - kSecond;
  summary.ranks = 1;
  summary.loss_nats = loss_nats;
  summary.tokens = 1024;
  summary.unmasked_tokens = 1000;
  summary.finite_tokens = 1000;
  summary.micro_batches = 1;
  return summary;
}

state::StepSummary MakeFullStep(std::uint64_t sequence, std::int64_t step) {
  state::StepSummary summary = MakeStep(sequence, step, 2.25);
  summary.publish_time_ns = kNow - kSecond - 250'000'000;
  summary.ranks = 2;
  summary.missing_ranks = {3};
  summary.complete = false;
  summary.perplexity = 9.487735836358526;
  summary.bits_per_byte = 0.8125;
  summary.grad_norm = 0.5;
  summary.logit_grad_norm = 0.125;
  summary.max_abs_logit = 17.5;
  summary.log_z_mean_nats = 11.5;
  summary.log_z_max_nats = 14.25;
  summary.z_loss_nats = 0.013;
  summary.objective_nats = 2.263;
  summary.learning_rate = 0.0003;
  summary.reported_loss_nats = 2.25;
  summary.accuracy = 0.4375;
  summary.step_seconds = 0.25;
  summary.denominator_min = 1000;
  summary.denominator_max = 1000;
  summary.nonfinite_rows = 1;
  summary.nonfinite_grad_rows = 2;
  summary.bad_targets = 3;
  summary.micro_batches = 4;
  summary.target_bytes = 4096;
  summary.target_fingerprint = 0xfedcba9876543210u;
  summary.mask_fingerprint = 0x0123456789abcdefu;
  summary.worst_row = state::Place{1, 77, 31, 9.75};
  summary.worst_logit = state::Place{0, 5, 1234, 17.5};
  summary.first_nonfinite_row = state::Place{1, 12, -1, 0};
  state::RankSummary rank;
  rank.rank = 0;
  rank.loss_nats = 2.125;
  rank.grad_norm = 0.5;
  rank.max_abs_logit = 17.5;
  rank.unmasked_tokens = 600;
  rank.nonfinite_rows = 1;
  rank.lost_before = 7;
  summary.rank_steps = {rank, state::RankSummary{1, {}, {}, {}, 400, 0, 0}};
  return summary;
}

state::Verdict MakeVerdict(state::Action action, std::string reason_code, state::TimeNs evaluated_at_ns, std::int64_t term_ns) {
  state::Verdict verdict;
  verdict.action = action;
  verdict.reason = "because of " + reason_code;
  verdict.reason_codes = {std::move(reason_code)};
  verdict.policy_version = "test-1";
  verdict.evaluated_at_ns = evaluated_at_ns;
  verdict.valid_until_ns = evaluated_at_ns + term_ns;
  verdict.attempt = "a1";
  verdict.last_step = 41;
  verdict.last_step_age_ns = kSecond / 2;
  return verdict;
}

state::Incident MakeIncident(std::string id, state::Condition condition, bool open) {
  state::Incident incident;
  incident.id = std::move(id);
  incident.run = "run";
  incident.attempt = "a1";
  incident.condition = condition;
  incident.severity = state::Severity::kWarning;
  incident.open = open;
  incident.onset_step = 40;
  incident.peak_step = 41;
  incident.last_step = 42;
  incident.onset_time_ns = kNow - 3 * kSecond;
  incident.last_time_ns = kNow - kSecond;
  if (!open) incident.resolved_time_ns = kNow;
  incident.summary = "something happened";
  return incident;
}

std::shared_ptr<state::RunSnapshot> MakeRun(const std::string& name, std::uint64_t first_sequence, std::uint64_t last_sequence) {
  auto run = std::make_shared<state::RunSnapshot>();
  run->run = name;
  run->attempts.push_back({"a1", kNow - 60 * kSecond, 0, static_cast<std::int64_t>(last_sequence) - 1, last_sequence, "running", {}});
  run->first_seen_ns = kNow - 60 * kSecond;
  run->verdict = MakeVerdict(state::Action::kContinue, "fresh");
  run->next_sequence = last_sequence + 1;
  std::shared_ptr<state::StepChunk> chunk;
  for (std::uint64_t sequence = first_sequence; sequence <= last_sequence; ++sequence) {
    if (!chunk || chunk->size() == 4) {
      chunk = std::make_shared<state::StepChunk>();
      run->recent_steps.push_back(chunk);
    }
    auto step = std::make_shared<const state::StepSummary>(
        MakeStep(sequence, static_cast<std::int64_t>(sequence) - 1, 2.0 + static_cast<double>(sequence) / 1000));
    chunk->push_back(step);
    run->last_step = step;
  }
  return run;
}

std::shared_ptr<state::RunSnapshot> MakeFullRun(const std::string& name) {
  auto run = MakeRun(name, 1, 0);
  run->attempts.front().last_step = 40;
  run->attempts.front().steps = 41;
  run->attempts.front().state = "lost";
  run->attempts.push_back({"a2", kNow - 10 * kSecond, 32, 41, 10, "running", 40});
  run->layout.world_size = 4;
  run->layout.dp = {2, 0};
  run->layout.tp = {2, 0};
  run->layout.pp = {1, 0};
  run->layout.cp = {1, 0};
  run->layout.ep = {1, 0};
  run->layout.vocab_size = 128256;
  run->layout.gradient_reduction = LG_GRADIENT_REDUCTION_MEAN;
  auto step = std::make_shared<const state::StepSummary>(MakeFullStep(42, 41));
  run->recent_steps = {std::make_shared<const state::StepChunk>(state::StepChunk{step})};
  run->last_step = step;
  run->next_sequence = 43;

  auto producer = std::make_shared<state::ProducerInfo>();
  producer->run = name;
  producer->attempt = "a2";
  producer->ring_path = "/dev/shm/lossgauge-0/0011223344556677-r0-00112233445566778899aabbccddeeff.steps";
  state::RankView rank;
  rank.rank = 0;
  rank.producer = producer;
  rank.liveness.producer_state = state::ProducerState::kFrozen;
  rank.liveness.enqueued_step = 42;
  rank.liveness.published_step = 41;
  rank.liveness.entered_step = 42;
  rank.liveness.last_call = LG_CALL_PUBLISH;
  rank.last_record_time_ns = kNow - kSecond;
  rank.totals.records_lost = {5, 0, 1, 0};
  run->ranks = {rank};

  state::Incident incident = MakeIncident("00000000deadbeef-7", state::Condition::kLossSpike);
  incident.run = name;
  incident.attempt = "a2";
  incident.kind = "logit_blowup";
  incident.rank = 1;
  incident.evidence = {{"loss_nats", 5.098, "nats", ""}, {"worst_row", 77, "", "rank 1, target 31"}};
  incident.acknowledged = state::Acknowledgement{"anna", "known document", kNow - kSecond};
  incident.hidden_by = "00000000deadbeef-6";
  incident.steps_to_recover = 28;
  run->incidents = {MakeIncident("00000000deadbeef-5", state::Condition::kBlip, false), incident};
  run->incidents.front().run = name;

  run->policy = std::make_shared<state::PolicyView>(
      state::PolicyView{"test-1", "advise", {{"loss", "floor_nats", 0.12}, {"loss", "close_steps", 30}, {"time", "valid_seconds", 30}}});
  run->verdict = MakeVerdict(state::Action::kRestart, "divergence");
  run->verdict.attempt = "a2";
  run->verdict.evidence = {{"loss_nats", 7.5, "nats", ""}};
  run->verdict.last_good_step = 33;
  run->verdict.resume_point = state::ResumePoint{30, "/checkpoints/step_30"};
  run->verdict.skip = state::StepSpan{34, 41};
  run->verdict.rank_at_fault = 1;
  run->verdict.escalates = "to HALT if it happens again at the same step";
  run->verdict.since_ns = kNow - 5 * kSecond;

  run->totals.steps = 51;
  run->totals.nll_sum = lg_fixed128_from_double(114751.25);
  run->totals.tokens = 52224;
  run->totals.unmasked_tokens = 51000;
  run->totals.finite_tokens = 50999;
  run->totals.nonfinite_rows = 1;
  run->totals.target_bytes = 208896;
  run->totals.bad_targets = 3;
  run->totals.records_lost = {5, 0, 1, 0};
  run->phase = "evaluation";
  run->last_checkpoint = state::ResumePoint{40, "/checkpoints/step_40"};
  run->evaluation_loss_nats = 2.5;
  run->evaluation_step = 40;
  return run;
}

std::shared_ptr<state::Snapshot> MakeSnapshot(std::uint64_t version, std::vector<std::shared_ptr<const state::RunSnapshot>> runs) {
  auto snapshot = std::make_shared<state::Snapshot>();
  snapshot->version = version;
  snapshot->time_ns = kNow;
  snapshot->instance = "instance-1";
  snapshot->start_time_ns = kNow - 3600 * kSecond;
  snapshot->runs = std::move(runs);
  return snapshot;
}

FakeDrain::FakeDrain(state::Mailbox& mailbox) : mailbox_(mailbox), thread_([this] {
  while (!stopping_) {
    mailbox_.Drain(
        [this](state::Mailbox::Acknowledge& request, state::Mailbox::AcknowledgeDone& done) {
          std::lock_guard lock(mutex);
          for (state::Incident& incident : incidents) {
            if (incident.id != request.incident_id) continue;
            incident.acknowledged = request.acknowledgement;
            return done(absl::OkStatus(), &incident);
          }
          done(absl::NotFoundError("id: no such incident"), nullptr);
        },
        [this](state::Mailbox::Report& report, state::Mailbox::ReportDone& done) {
          std::lock_guard lock(mutex);
          ledger.push_back(report);
          done(absl::OkStatus(), ledger.size());
        },
        [this](state::Mailbox::SetMode& request, state::Mailbox::SetModeDone& done) {
          std::lock_guard lock(mutex);
          modes.push_back(request);
          done(absl::OkStatus(), request.mode == "shadow" ? "shadow" : "advise");
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}) {}

FakeDrain::~FakeDrain() {
  stopping_ = true;
  thread_.join();
}

}  // namespace lossgauge::testing
