// The API over hand-made state, for fuzzers of what it is asked.
#ifndef LOSSGAUGE_TESTS_FUZZ_API_FIXTURE_H_
#define LOSSGAUGE_TESTS_FUZZ_API_FIXTURE_H_

#include <google/protobuf/stubs/logging.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "server/api/api.h"
#include "server/api/json.h"
#include "server/api/text.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::testing {

class FuzzedApi {
 public:
  FuzzedApi() {
    google::protobuf::SetLogHandler(nullptr);  // it logs each request that does not parse
    auto run = MakeFullRun("run");
    for (std::uint64_t s = 1; s < 42; ++s) history_->steps.push_back(MakeStep(s, static_cast<std::int64_t>(s) - 1, 2));
    for (int i = 0; i < 20; ++i) history_->verdicts.push_back(MakeVerdict(state::Action::kWatch, "x", kNow - i));
    for (int i = 0; i < 20; ++i) history_->incidents.push_back(MakeIncident(std::to_string(i), state::Condition::kBlip));
    history_->runs = {{"past", kNow}};
    board_.Publish(MakeSnapshot(1, {run, MakeRun("", 1, 4), MakeRun("sibling", 30, 45)}));
  }

  // Calls whichever call takes the request. What comes back must be what a client can read.
  void Call(const v1::ListRunsRequest& request) { Look(api_.ListRuns(request)); }
  void Call(const v1::GetRunRequest& request) { Look(api_.GetRun(request)); }
  void Call(const v1::GetVerdictRequest& request) { Look(api_.GetVerdict(request)); }
  void Call(const v1::ListVerdictsRequest& request) { Look(api_.ListVerdicts(request)); }
  void Call(const v1::ListStepsRequest& request) { Look(api_.ListSteps(request)); }
  void Call(const v1::ListIncidentsRequest& request) { Look(api_.ListIncidents(request)); }
  void Call(const v1::ListEventsRequest& request) { Look(api_.ListEvents(request)); }
  void Call(const v1::CompareRunsRequest& request) { Look(api_.CompareRuns(request)); }
  void Call(const v1::ExplainRequest& request) { Look(api_.Explain(request)); }
  void Call(const v1::GetPolicyRequest& request) { Look(api_.GetPolicy(request)); }
  void Call(const v1::WatchStepsRequest& request) { Watch(api_.WatchSteps(request)); }
  void Call(const v1::WatchVerdictRequest& request) { Watch(api_.WatchVerdict(request)); }
  void Call(const v1::AcknowledgeIncidentRequest& request) {
    api_.AcknowledgeIncident(request, [](const absl::StatusOr<v1::Incident>& result) { Look(result); });
    Drain();
  }
  void Call(const v1::ReportActionRequest& request) {
    api_.ReportAction(request, [](const absl::StatusOr<v1::ReportActionResponse>& result) { Look(result); });
    Drain();
  }

 private:
  static void Require(bool condition) {
    if (!condition) std::abort();
  }
  static void Look(const absl::Status& status) {
    Require(!status.message().empty());
    Require(api::IsValidUtf8(api::ErrorJson(status)));
  }
  template <typename Message>
  static void Look(const absl::StatusOr<Message>& result) {
    if (!result.ok()) return Look(result.status());
    Message copy;
    Require(copy.ParseFromString(result->SerializeAsString()));
    Require(api::ToJson(*result).ok());
  }
  template <typename Source>
  void Watch(absl::StatusOr<Source> source) {
    if (!source.ok()) return Look(source.status());
    for (int i = 0; i < 4; ++i) {
      typename Source::Message message;
      const absl::StatusOr<bool> next = source->Next(*board_.Get(), kNow, &message);
      Require(next.ok());
      if (!*next) return;
      Look(absl::StatusOr<typename Source::Message>(message));
    }
    std::abort();  // 42 steps fit into fewer messages: it repeats itself
  }
  void Drain() {
    mailbox_.Drain(
        [](state::Mailbox::Acknowledge& request, state::Mailbox::AcknowledgeDone& done) {
          state::Incident incident = MakeIncident(request.incident_id, state::Condition::kBlip);
          incident.acknowledged = request.acknowledgement;
          done(absl::OkStatus(), &incident);
        },
        [](state::Mailbox::Report&, state::Mailbox::ReportDone& done) { done(absl::OkStatus(), 1); },
        [](state::Mailbox::SetMode&, state::Mailbox::SetModeDone& done) { done(absl::OkStatus(), "advise"); });
  }

  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::shared_ptr<FakeHistory> history_ = std::make_shared<FakeHistory>();
  FakeClock clock_;
  api::Api api_{board_, mailbox_, history_, clock_};
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_FUZZ_API_FIXTURE_H_
