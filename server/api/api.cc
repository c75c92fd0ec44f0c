#include "server/api/api.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/convert_incident.h"
#include "server/api/convert_policy.h"
#include "server/api/convert_run.h"
#include "server/api/convert_step.h"
#include "server/api/convert_verdict.h"
#include "server/api/list_start.h"
#include "server/api/page_token.h"
#include "server/api/requests.h"
#include "server/api/step_feed.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

// How many pages of new items may have come before a page is asked for, until items can appear twice.
constexpr int kPagesLookedAt = 8;

template <typename Item>
struct Page {
  std::vector<Item> items;  // up to one more than a page: whether another follows
  std::uint64_t offset = 0;  // of the first
};

// A list that grows at its head while it is read: `read(limit, offset)` gives newest first, `key` identifies an item. Goes on behind the
// item that the page before ended with, wherever new items have shifted it to; at the old offset if it is gone.
template <typename Item, typename Read, typename Key>
absl::StatusOr<Page<Item>> ReadShifting(const PagePosition& start, int size, const Read& read, const Key& key) {
  const int offset = static_cast<int>(std::min<std::uint64_t>(start.position, 1 << 30));
  const auto is_anchor = [&](const Item& item) { return key(item) == start.anchor; };
  if (start.anchor != 0 && offset > 0) {
    int from = offset - 1;  // the anchor itself, if nothing moved
    for (int page = 0; page < kPagesLookedAt; ++page, from += size + 2) {
      absl::StatusOr<std::vector<Item>> items = read(size + 2, from);
      if (!items.ok()) return items.status();
      const auto anchor = std::find_if(items->begin(), items->end(), is_anchor);
      if (anchor == items->end()) {
        if (static_cast<int>(items->size()) < size + 2) break;
        continue;
      }
      if (anchor == items->begin()) {
        items->erase(items->begin());
        return Page<Item>{std::move(*items), static_cast<std::uint64_t>(from) + 1};
      }
      // Damaged items take a place but are not among these: the anchor may come again before what follows it.
      for (auto found = anchor; found != items->end(); found = std::find_if(items->begin(), items->end(), is_anchor)) {
        from += static_cast<int>(found - items->begin()) + 1;
        items = read(size + 1, from);
        if (!items.ok()) return items.status();
      }
      return Page<Item>{std::move(*items), static_cast<std::uint64_t>(from)};
    }
  }
  absl::StatusOr<std::vector<Item>> items = read(size + 1, offset);
  if (!items.ok()) return items.status();
  return Page<Item>{std::move(*items), static_cast<std::uint64_t>(offset)};
}

}  // namespace

absl::StatusOr<v1::ListRunsResponse> Api::ListRuns(const v1::ListRunsRequest& request) const {
  const auto snapshot = board_.Get();
  const state::TimeNs now = clock_.NowNs();
  v1::ListRunsResponse response;
  response.set_instance(ValidUtf8(snapshot->instance));
  for (const auto& run : snapshot->runs) ToMessage(*run, snapshot->instance, now, RunDetail::kOverview, response.add_runs());
  if (!request.include_past() || history_ == nullptr) return response;
  const auto stored = history_->ReadRuns(kMaxListPage + static_cast<int>(snapshot->runs.size()));
  if (!stored.ok()) return stored.status();
  for (const state::StoredRun& run : *stored) {
    if (state::FindRun(*snapshot, run.run) != nullptr || response.past_runs_size() == kMaxListPage) continue;
    v1::PastRun* past = response.add_past_runs();
    past->set_run(ValidUtf8(run.run));
    if (run.updated_ns != 0) SetTimestamp(run.updated_ns, past->mutable_last_write_time());
  }
  return response;
}

absl::StatusOr<v1::Run> Api::GetRun(const v1::GetRunRequest& request) const {
  const auto snapshot = board_.Get();
  const auto run = RequireRun(*snapshot, request.run());
  if (!run.ok()) return run.status();
  v1::Run response;
  ToMessage(**run, snapshot->instance, clock_.NowNs(), RunDetail::kFull, &response);
  return response;
}

absl::StatusOr<v1::Verdict> Api::GetVerdict(const v1::GetVerdictRequest& request) const {
  const auto snapshot = board_.Get();
  const auto run = RequireRun(*snapshot, request.run());
  if (!run.ok()) return run.status();
  v1::Verdict response;
  ToMessage((*run)->run, CurrentVerdict(**run, clock_.NowNs()), snapshot->instance, &response);
  return response;
}

absl::StatusOr<v1::Policy> Api::GetPolicy(const v1::GetPolicyRequest& request) const {
  const auto snapshot = board_.Get();
  const auto run = RequireRun(*snapshot, request.run());
  if (!run.ok()) return run.status();
  if ((*run)->policy == nullptr) return absl::UnavailableError("this run's policy is not known yet; try again a little later");
  v1::Policy response;
  ToMessage((*run)->run, *(*run)->policy, &response);
  return response;
}

absl::StatusOr<VerdictWatch> Api::WatchVerdict(const v1::WatchVerdictRequest& request) const {
  return VerdictWatch::Create(*board_.Get(), request);
}

absl::StatusOr<StepWatch> Api::WatchSteps(const v1::WatchStepsRequest& request) const {
  return StepWatch::Create(*board_.Get(), request, history_);
}

absl::StatusOr<v1::ListVerdictsResponse> Api::ListVerdicts(const v1::ListVerdictsRequest& request) const {
  const auto snapshot = board_.Get();
  const auto run = RequireKnownRun(*snapshot, history_.get(), request.run());
  if (!run.ok()) return run.status();
  const absl::StatusOr<ListStart> start = BeginList(request);
  if (!start.ok()) return start.status();
  v1::ListVerdictsResponse response;
  if (history_ == nullptr) return response;

  const auto key = [](const state::Verdict& verdict) { return static_cast<std::uint64_t>(verdict.evaluated_at_ns); };
  const auto verdicts = ReadShifting<state::Verdict>(
      start->at, start->size, [&](int limit, int offset) { return history_->ReadVerdicts((*run)->run, limit, offset); }, key);
  if (!verdicts.ok()) return verdicts.status();
  std::size_t bytes = 0;
  for (const state::Verdict& verdict : verdicts->items) {
    const auto given = static_cast<std::uint64_t>(response.verdicts_size());
    if (given == static_cast<std::uint64_t>(start->size) || bytes >= kMaxPageBytes) {
      response.set_next_page_token(MakePageToken(start->query, {verdicts->offset + given, key(verdicts->items[given - 1])}));
      break;
    }
    v1::Verdict* added = response.add_verdicts();
    ToMessage((*run)->run, verdict, snapshot->instance, added);
    bytes += added->ByteSizeLong();
  }
  return response;
}

absl::StatusOr<v1::ListIncidentsResponse> Api::ListIncidents(const v1::ListIncidentsRequest& request) const {
  const auto snapshot = board_.Get();
  const auto run = RequireKnownRun(*snapshot, history_.get(), request.run());
  if (!run.ok()) return run.status();
  const absl::StatusOr<ListStart> start = BeginList(request);
  if (!start.ok()) return start.status();

  const auto key = [](const state::Incident& incident) { return StableHash(incident.id); };
  // Open incidents all stand in the snapshot, newest onset last; the rest only in history, newest first.
  const auto read = [&](int limit, int offset) -> absl::StatusOr<std::vector<state::Incident>> {
    if (!request.open_only() && history_ != nullptr) return history_->ReadIncidents((*run)->run, false, limit, offset);
    std::vector<state::Incident> page;
    int index = 0;
    const auto& incidents = (*run)->incidents;
    for (auto incident = incidents.rbegin(); incident != incidents.rend() && static_cast<int>(page.size()) < limit; ++incident) {
      if (request.open_only() && !incident->open) continue;
      if (index++ >= offset) page.push_back(*incident);
    }
    return page;
  };
  const auto incidents = ReadShifting<state::Incident>(start->at, start->size, read, key);
  if (!incidents.ok()) return incidents.status();
  v1::ListIncidentsResponse response;
  std::size_t bytes = 0;
  for (const state::Incident& incident : incidents->items) {
    const auto given = static_cast<std::uint64_t>(response.incidents_size());
    if (given == static_cast<std::uint64_t>(start->size) || bytes >= kMaxPageBytes) {
      response.set_next_page_token(MakePageToken(start->query, {incidents->offset + given, key(incidents->items[given - 1])}));
      break;
    }
    // The snapshot may know more of it than was written yet.
    const auto& live = (*run)->incidents;
    const auto newer = std::find_if(live.begin(), live.end(), [&](const state::Incident& other) { return other.id == incident.id; });
    v1::Incident* added = response.add_incidents();
    ToMessage(newer == live.end() ? incident : *newer, added);
    bytes += added->ByteSizeLong();
  }
  return response;
}

absl::StatusOr<v1::ListStepsResponse> Api::ListSteps(const v1::ListStepsRequest& request) const {
  const auto snapshot = board_.Get();
  const auto run = RequireKnownRun(*snapshot, history_.get(), request.run());
  if (!run.ok()) return run.status();
  if (absl::Status status = Check(request); !status.ok()) return status;
  const absl::StatusOr<int> size = PageSize(request.page_size(), 1000, kMaxStepsPage);
  if (!size.ok()) return size.status();

  state::StepQuery step_query;
  step_query.run = (*run)->run;
  step_query.attempt = request.attempt();
  step_query.thinned = request.include_thinned();
  if (request.has_first_step()) step_query.first_step = request.first_step();
  if (request.has_last_step()) step_query.last_step = request.last_step();
  v1::ListStepsResponse response;

  if (request.tail() > 0) {
    step_query.limit = request.tail();
    const absl::StatusOr<StepList> steps = ReadTail(**run, history_.get(), step_query);
    if (!steps.ok()) return steps.status();
    // The newest are what was asked for: where not all fit, the oldest stay out.
    std::vector<v1::Step> newest_first;
    std::size_t bytes = 0;
    for (auto step = steps->rbegin(); step != steps->rend() && bytes < kMaxPageBytes; ++step) {
      ToMessage(**step, request.include_ranks(), &newest_first.emplace_back());
      bytes += newest_first.back().ByteSizeLong();
    }
    for (auto step = newest_first.rbegin(); step != newest_first.rend(); ++step) *response.add_steps() = std::move(*step);
    return response;
  }

  const std::uint64_t query = QueryHash(request);
  const absl::StatusOr<PagePosition> start = ParsePageToken(request.page_token(), query);
  if (!start.ok()) return start.status();
  step_query.after_sequence = start->position;
  std::size_t bytes = 0;
  while (true) {
    step_query.limit = std::min(kStepsPerRead, *size + 1 - response.steps_size());
    const absl::StatusOr<StepList> steps = ReadAfter(**run, history_.get(), step_query);
    if (!steps.ok()) return steps.status();
    for (const auto& step : *steps) {
      if (response.steps_size() == *size || bytes >= kMaxPageBytes) {
        response.set_next_page_token(MakePageToken(query, {step_query.after_sequence, 0}));
        return response;
      }
      v1::Step* added = response.add_steps();
      ToMessage(*step, request.include_ranks(), added);
      bytes += added->ByteSizeLong();
      step_query.after_sequence = step->sequence;
    }
    if (static_cast<int>(steps->size()) < step_query.limit) return response;
  }
}

void Api::AcknowledgeIncident(const v1::AcknowledgeIncidentRequest& request,
                              std::function<void(absl::StatusOr<v1::Incident>)> done) const {
  if (absl::Status status = Check(request); !status.ok()) return done(status);
  state::Mailbox::Acknowledge message;
  message.incident_id = request.id();
  message.acknowledgement = {request.by(), request.comment(), clock_.NowNs()};
  const absl::Status sent = mailbox_.Send(std::move(message), [done](absl::Status status, const state::Incident* incident) {
    if (!status.ok()) return done(status);
    if (incident == nullptr) return done(absl::InternalError("acknowledged, but the incident was not given back"));
    v1::Incident response;
    ToMessage(*incident, &response);
    done(std::move(response));
  });
  if (!sent.ok()) done(sent);
}

void Api::ReportAction(const v1::ReportActionRequest& request,
                       std::function<void(absl::StatusOr<v1::ReportActionResponse>)> done) const {
  const auto run = RequireRun(*board_.Get(), request.run());
  if (!run.ok()) return done(run.status());
  if (absl::Status status = Check(request); !status.ok()) return done(status);
  state::Mailbox::Report message;
  message.run = request.run();
  message.entry = {static_cast<state::Action>(request.action()), request.actor(), request.comment(), request.attempt(), clock_.NowNs()};
  const absl::Status sent = mailbox_.Send(std::move(message), [done](absl::Status status, std::uint64_t ledger_entries) {
    if (!status.ok()) return done(status);
    v1::ReportActionResponse response;
    response.set_ledger_entries(ledger_entries);
    done(std::move(response));
  });
  if (!sent.ok()) done(sent);
}

void Api::SetMode(const v1::SetModeRequest& request, std::function<void(absl::StatusOr<v1::SetModeResponse>)> done) const {
  const auto run = RequireRun(*board_.Get(), request.run());
  if (!run.ok()) return done(run.status());
  if (absl::Status status = Check(request); !status.ok()) return done(status);
  state::Mailbox::SetMode message{request.run(), request.mode(), request.by()};
  const absl::Status sent = mailbox_.Send(std::move(message), [done](absl::Status status, const std::string& mode) {
    if (!status.ok()) return done(status);
    v1::SetModeResponse response;
    response.set_mode(mode);
    done(std::move(response));
  });
  if (!sent.ok()) done(sent);
}

}  // namespace lossgauge::api
