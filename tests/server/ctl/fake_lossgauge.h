// A lossgauged that knows what a test tells it, on a free port of loopback.
#ifndef LOSSGAUGE_TESTS_SERVER_CTL_FAKE_LOSSGAUGE_H_
#define LOSSGAUGE_TESTS_SERVER_CTL_FAKE_LOSSGAUGE_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lossgauge/v1/lossgauge.grpc.pb.h"

namespace lossgauge::ctl {

class FakeLossGauge final : public v1::LossGauge::Service {
 public:
  FakeLossGauge() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeLossGauge() override { Stop(); }
  void Stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  const std::string& address() const { return address_; }

  // What it knows. Filled in before it is asked.
  std::map<std::string, v1::Run> runs;
  std::map<std::string, std::vector<v1::Step>> steps;
  std::map<std::string, std::vector<v1::Incident>> incidents;
  std::vector<v1::Event> events;
  std::vector<v1::PastRun> past_runs;
  std::set<std::string> past;  // of these, runs that are only in the history
  std::string policy_text, policy_version;
  v1::Comparison comparison;
  v1::Explanation explanation;
  std::vector<std::vector<v1::WatchStepsResponse>> step_streams;  // one list a connection: sent, then the stream breaks
  std::size_t page = 1000;                                         // steps or incidents in an answer
  std::chrono::milliseconds delay{0};
  bool silent_verdicts = false;
  // What it was asked.
  v1::ListStepsRequest last_steps_request;
  v1::CompareRunsRequest last_comparison;
  v1::AcknowledgeIncidentRequest last_acknowledgement;
  v1::ReportActionRequest last_report;
  v1::SetModeRequest last_mode;
  std::vector<std::uint64_t> watch_tokens;
  std::atomic<int> verdict_watches{0};

  grpc::Status ListRuns(grpc::ServerContext* context, const v1::ListRunsRequest* request, v1::ListRunsResponse* answer) override {
    if (request->include_past()) {
      for (const v1::PastRun& run : past_runs) *answer->add_past_runs() = run;
    }
    // Ends early when the client has given up.
    for (auto waited = delay; waited.count() > 0 && !context->IsCancelled(); waited -= std::chrono::milliseconds(10)) {
      gpr_sleep_until(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(10, GPR_TIMESPAN)));
    }
    for (const auto& [name, run] : runs) *answer->add_runs() = run;
    return grpc::Status::OK;
  }

  grpc::Status GetVerdict(grpc::ServerContext*, const v1::GetVerdictRequest* request, v1::Verdict* verdict) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    *verdict = runs[request->run()].verdict();
    return grpc::Status::OK;
  }

  grpc::Status ListSteps(grpc::ServerContext*, const v1::ListStepsRequest* request, v1::ListStepsResponse* answer) override {
    last_steps_request = *request;
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    const std::vector<v1::Step>& all = steps[request->run()];
    std::size_t from = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    if (request->tail() > 0) from = all.size() - std::min<std::size_t>(all.size(), static_cast<std::size_t>(request->tail()));
    const std::size_t until = std::min(all.size(), from + page);
    for (std::size_t i = from; i < until; ++i) *answer->add_steps() = all[i];
    if (until < all.size()) answer->set_next_page_token(std::to_string(until));
    return grpc::Status::OK;
  }

  grpc::Status ListIncidents(grpc::ServerContext*, const v1::ListIncidentsRequest* request, v1::ListIncidentsResponse* answer) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    for (const v1::Incident& incident : incidents[request->run()]) {
      if (incident.open() || !request->open_only()) *answer->add_incidents() = incident;
    }
    return grpc::Status::OK;
  }

  grpc::Status GetRun(grpc::ServerContext*, const v1::GetRunRequest* request, v1::Run* run) override {
    if (runs.count(request->run()) == 0 || past.count(request->run()) != 0) return NoRun(request->run());
    *run = runs[request->run()];
    return grpc::Status::OK;
  }

  grpc::Status ListVerdicts(grpc::ServerContext*, const v1::ListVerdictsRequest* request, v1::ListVerdictsResponse* answer) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    *answer->add_verdicts() = runs[request->run()].verdict();
    return grpc::Status::OK;
  }

  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request, v1::ListEventsResponse* answer) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    for (const v1::Event& event : events) *answer->add_events() = event;
    return grpc::Status::OK;
  }

  grpc::Status GetPolicy(grpc::ServerContext*, const v1::GetPolicyRequest* request, v1::Policy* policy) override {
    if (runs.count(request->run()) == 0 || past.count(request->run()) != 0) return NoRun(request->run());
    policy->set_text(policy_text);
    policy->set_version(policy_version);
    return grpc::Status::OK;
  }

  grpc::Status CompareRuns(grpc::ServerContext*, const v1::CompareRunsRequest* request, v1::Comparison* answer) override {
    last_comparison = *request;
    if (runs.count(request->b()) == 0) return NoRun(request->b());
    *answer = comparison;
    answer->set_a(request->a());
    answer->set_b(request->b());
    return grpc::Status::OK;
  }

  grpc::Status Explain(grpc::ServerContext*, const v1::ExplainRequest* request, v1::Explanation* answer) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    *answer = explanation;
    answer->set_incident(request->incident());
    return grpc::Status::OK;
  }

  grpc::Status AcknowledgeIncident(grpc::ServerContext*, const v1::AcknowledgeIncidentRequest* request, v1::Incident* answer) override {
    last_acknowledgement = *request;
    for (auto& [run, list] : incidents) {
      for (v1::Incident& incident : list) {
        if (incident.id() != request->id()) continue;
        incident.set_acknowledged(true);
        incident.set_acknowledged_by(request->by());
        *answer = incident;
        return grpc::Status::OK;
      }
    }
    return {grpc::StatusCode::NOT_FOUND, "no incident \"" + request->id() + "\""};
  }

  grpc::Status ReportAction(grpc::ServerContext*, const v1::ReportActionRequest* request, v1::ReportActionResponse* answer) override {
    last_report = *request;
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    answer->set_ledger_entries(7);
    return grpc::Status::OK;
  }

  grpc::Status SetMode(grpc::ServerContext*, const v1::SetModeRequest* request, v1::SetModeResponse* answer) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    last_mode = *request;
    answer->set_mode(request->mode() == "policy" ? "advise" : request->mode());
    return grpc::Status::OK;
  }

  grpc::Status WatchVerdict(grpc::ServerContext* context, const v1::WatchVerdictRequest* request,
                            grpc::ServerWriter<v1::Verdict>* writer) override {
    if (runs.count(request->run()) == 0) return NoRun(request->run());
    ++verdict_watches;
    if (!silent_verdicts) writer->Write(runs[request->run()].verdict());
    WaitForClient(context);
    return grpc::Status::OK;
  }

  grpc::Status WatchSteps(grpc::ServerContext* context, const v1::WatchStepsRequest* request,
                          grpc::ServerWriter<v1::WatchStepsResponse>* writer) override {
    const std::size_t connection = watch_tokens.size();
    watch_tokens.push_back(request->after_sequence());
    if (connection >= step_streams.size()) {
      WaitForClient(context);
      return grpc::Status::OK;
    }
    for (const v1::WatchStepsResponse& message : step_streams[connection]) writer->Write(message);
    if (connection + 1 == step_streams.size()) WaitForClient(context);
    return {grpc::StatusCode::UNAVAILABLE, "going down"};
  }

 private:
  static grpc::Status NoRun(const std::string& run) { return {grpc::StatusCode::NOT_FOUND, "no run named \"" + run + "\""}; }

  static void WaitForClient(grpc::ServerContext* context) {
    while (!context->IsCancelled()) gpr_sleep_until(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(5, GPR_TIMESPAN)));
  }

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

inline v1::Step MakeStep(std::uint64_t sequence, std::int64_t step, double loss) {
  v1::Step message;
  message.set_sequence(sequence);
  message.set_attempt("1");
  message.set_step(step);
  message.set_loss_nats(loss);
  message.set_ranks(2);
  message.set_complete(true);
  message.set_unmasked_tokens(4096);
  return message;
}

inline v1::Run MakeRun(const std::string& name, v1::Action action, const std::string& reason) {
  v1::Run run;
  run.set_run(name);
  run.mutable_verdict()->set_run(name);
  run.mutable_verdict()->set_action(action);
  run.mutable_verdict()->set_reason(reason);
  run.mutable_verdict()->set_policy_version("default-1");
  run.mutable_verdict()->set_scope("local");
  run.mutable_verdict()->set_mode("advise");
  return run;
}

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_TESTS_SERVER_CTL_FAKE_LOSSGAUGE_H_
