// Calls that are answered from the history: what the job told, two runs side by side, and the story of a run.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/api.h"
#include "server/api/compare_steps.h"
#include "server/api/convert_step.h"
#include "server/api/explain.h"
#include "server/api/list_start.h"
#include "server/api/requests.h"
#include "server/api/step_feed.h"
#include "server/api/text.h"
#include "server/state/current_verdict.h"
#include "server/state/ring_names.h"

namespace lossgauge::api {
namespace {

// Steps and rows of a run that a comparison holds in memory: about 40 MB for both runs.
constexpr std::size_t kMaxCompared = 300'000;
constexpr std::size_t kMaxIdBytes = 256;

void ToMessage(std::int64_t id, const state::ProducerEvent& event, v1::Event* message) {
  message->set_id(id);
  if (event.producer) {
    message->set_attempt(ValidUtf8(event.producer->attempt));
    message->set_rank(event.producer->layout.rank);
  }
  message->set_kind(state::EventName(event.kind));
  if (event.step >= 0) message->set_step(event.step);
  if (event.kind == LG_EVENT_PHASE_BEGIN || event.kind == LG_EVENT_PHASE_END) message->set_phase(state::PhaseName(event.phase));
  if (event.kind == LG_EVENT_EVALUATION) message->set_value(event.value);
  message->set_count(event.count);
  message->set_text(ValidUtf8(event.text));
  if (event.receive_time_ns != 0) SetTimestamp(event.receive_time_ns, message->mutable_receive_time());
  if (event.producer_wall_ns != 0) SetTimestamp(event.producer_wall_ns, message->mutable_publish_time());
}

ComparedStep ToCompared(const state::StepSummary& step) {
  ComparedStep out;
  out.first_step = step.thinned ? step.thinned->first_step : step.step;
  out.last_step = step.step;
  out.steps = step.thinned ? step.thinned->steps : 1;
  out.sequence = step.sequence;
  out.unmasked_tokens = step.unmasked_tokens;
  out.target_fingerprint = step.target_fingerprint;
  out.complete = step.complete;
  const bool all_finite = step.nonfinite_rows == 0 && (!step.thinned || step.thinned->nonfinite_steps == 0);
  if (all_finite) out.loss_nats = step.loss_nats;
  return out;
}

absl::StatusOr<std::vector<ComparedStep>> ReadCompared(const state::RunSnapshot& run, state::HistoryReader* history, const std::string& attempt,
                                                       const v1::CompareRunsRequest& request,
                                                       const std::function<bool()>& is_cancelled) {
  state::StepQuery query;
  query.run = run.run;
  query.attempt = attempt;
  query.thinned = true;
  query.without_ranks = true;
  query.limit = kStepsPerRead;
  if (request.has_first_step()) query.first_step = request.first_step();
  if (request.has_last_step()) query.last_step = request.last_step();
  std::vector<ComparedStep> steps;
  while (true) {
    if (is_cancelled && is_cancelled()) return absl::CancelledError("nobody waits for this comparison any more");
    const absl::StatusOr<StepList> page = ReadAfter(run, history, query);
    if (!page.ok()) return page.status();
    for (const auto& step : *page) steps.push_back(ToCompared(*step));
    if (page->size() < static_cast<std::size_t>(kStepsPerRead)) return steps;
    if (steps.size() > kMaxCompared) {
      return absl::ResourceExhaustedError(absl::StrCat("run ", Quoted(run.run), " has more than ", kMaxCompared,
                                                       " steps to compare; give first_step and last_step"));
    }
    query.after_sequence = page->back()->sequence;
  }
}

// Versions of the policies that verdicts of the incident's time were given by; newest first. Only changes of verdicts are kept, and of them the
// newest are looked at.
std::vector<std::string> JudgedBy(state::HistoryReader* history, const std::string& run, const state::Incident& incident) {
  std::vector<std::string> versions;
  if (history == nullptr) return versions;
  const auto verdicts = history->ReadVerdicts(run, kMaxListPage, 0);
  if (!verdicts.ok()) return versions;  // it is a note beside the story
  state::TimeNs until_ns = std::numeric_limits<state::TimeNs>::max();
  for (const state::Verdict& verdict : *verdicts) {
    const bool is_new = std::find(versions.begin(), versions.end(), verdict.policy_version) == versions.end();
    if (is_new && !verdict.policy_version.empty() && IsOfItsTime(verdict, until_ns, incident)) versions.push_back(verdict.policy_version);
    until_ns = verdict.evaluated_at_ns;
  }
  return versions;
}

// The one that judged, if it is another than what is loaded now and is kept; else what is loaded.
std::shared_ptr<const state::PolicyView> PolicyOfTheTime(state::HistoryReader* history, const std::vector<std::string>& judged_by,
                                                         const std::shared_ptr<const state::PolicyView>& loaded) {
  if (history == nullptr || judged_by.empty() || (loaded != nullptr && judged_by.front() == loaded->version)) return loaded;
  const auto kept = history->ReadPolicies(judged_by.front());
  return kept.ok() && !kept->empty() ? kept->front().policy : loaded;
}

// An error about one of two runs says which.
absl::Status Named(const char* field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", std::string(status.message())));
}

}  // namespace

absl::StatusOr<v1::ListEventsResponse> Api::ListEvents(const v1::ListEventsRequest& request) const {
  const auto run = RequireKnownRun(*board_.Get(), history_.get(), request.run());
  if (!run.ok()) return run.status();
  const absl::StatusOr<ListStart> start = BeginList(request);
  if (!start.ok()) return start.status();
  v1::ListEventsResponse response;
  if (history_ == nullptr) return response;
  const auto page = history_->ReadEvents((*run)->run, static_cast<std::int64_t>(start->at.position), start->size);
  if (!page.ok()) return page.status();
  for (const auto& [id, event] : page->events) ToMessage(id, event, response.add_events());
  response.set_damaged(page->damaged);
  if (page->more) response.set_next_page_token(MakePageToken(start->query, {static_cast<std::uint64_t>(page->last_id), 0}));
  return response;
}

absl::StatusOr<v1::Comparison> Api::CompareRuns(const v1::CompareRunsRequest& request, const std::function<bool()>& is_cancelled) const {
  if (absl::Status status = Check(request); !status.ok()) return status;
  const auto snapshot = board_.Get();
  const auto a = RequireKnownRun(*snapshot, history_.get(), request.a());
  if (!a.ok()) return Named("a", a.status());
  const auto b = RequireKnownRun(*snapshot, history_.get(), request.b());
  if (!b.ok()) return Named("b", b.status());
  auto steps_a = ReadCompared(**a, history_.get(), request.attempt_a(), request, is_cancelled);
  if (!steps_a.ok()) return Named("a", steps_a.status());
  auto steps_b = ReadCompared(**b, history_.get(), request.attempt_b(), request, is_cancelled);
  if (!steps_b.ok()) return Named("b", steps_b.status());
  v1::Comparison response = CompareSteps(*std::move(steps_a), *std::move(steps_b));
  response.set_a(ValidUtf8((*a)->run));
  response.set_b(ValidUtf8((*b)->run));
  return response;
}

absl::StatusOr<v1::Explanation> Api::Explain(const v1::ExplainRequest& request) const {
  if (absl::Status status = CheckText(request.incident(), "incident", kMaxIdBytes, false); !status.ok()) return status;
  const auto snapshot = board_.Get();
  const auto run = RequireKnownRun(*snapshot, history_.get(), request.run());
  if (!run.ok()) return run.status();
  ExplainedRun story;
  story.run = (*run)->run;
  story.now_ns = clock_.NowNs();
  story.is_past = state::FindRun(*snapshot, (*run)->run) == nullptr;
  story.policy = (*run)->policy.get();
  if (!story.is_past) story.verdict = CurrentVerdict(**run, story.now_ns);
  for (const state::Incident& incident : (*run)->incidents) {
    if (incident.open) story.open.push_back(incident);
  }
  if (!request.incident().empty()) {
    const auto& live = (*run)->incidents;
    const auto found = std::find_if(live.begin(), live.end(), [&](const state::Incident& one) { return one.id == request.incident(); });
    const auto explain = [&](const state::Incident& incident) {
      story.judged_by = JudgedBy(history_.get(), story.run, incident);
      const auto policy = PolicyOfTheTime(history_.get(), story.judged_by, (*run)->policy);
      story.policy = policy.get();
      return ExplainIncident(story, incident);
    };
    if (found != live.end()) return explain(*found);
    if (history_ != nullptr) {
      const auto stored = history_->FindIncident(story.run, request.incident());
      if (!stored.ok()) return stored.status();
      if (stored->has_value()) return explain(**stored);
    }
    return absl::NotFoundError(absl::StrCat("incident: run ", Quoted(story.run), " has no incident ", Quoted(request.incident()),
                                            "; ListIncidents gives the id of each"));
  }
  std::shared_ptr<const state::PolicyView> policy_of_past;  // outlives the story
  if (history_ != nullptr) {
    const auto changes = history_->ReadVerdicts(story.run, 1, 0);
    if (!changes.ok()) return changes.status();
    if (!changes->empty()) {
      const state::Verdict& last = changes->front();
      if (story.is_past) {
        story.verdict = last;
        policy_of_past = PolicyOfTheTime(history_.get(), {last.policy_version}, (*run)->policy);
        story.policy = policy_of_past.get();
      } else if (!DiffersInSubstance(last, *story.verdict)) {
        story.verdict_since_ns = last.evaluated_at_ns;
      }
    }
  }
  return ExplainRun(story);
}

}  // namespace lossgauge::api
