#include "tests/bench/fleet/observer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace lossgauge::fleet {
namespace {

constexpr std::size_t kWrongSteps = 20;

std::unique_ptr<v1::LossGauge::Stub> Connect(const std::string& daemon, int number) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("fleet.connection", number);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return v1::LossGauge::NewStub(grpc::CreateCustomChannel(daemon, grpc::InsecureChannelCredentials(), arguments));
}

std::unique_ptr<grpc::ClientContext> Within(std::chrono::seconds time) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + time);
  return context;
}

}  // namespace

Observer::Observer(const std::string& daemon, const std::string& run) : run_(run), steps_stub_(Connect(daemon, 1)), verdict_stub_(Connect(daemon, 2)) {}

Observer::~Observer() { Stop(); }

void Observer::Start() {
  steps_thread_ = std::thread([this] { FollowSteps(); });
  verdict_thread_ = std::thread([this] { AskVerdicts(); });
}

void Observer::Stop() {
  stopping_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (context_ != nullptr) context_->TryCancel();
  }
  if (steps_thread_.joinable()) steps_thread_.join();
  if (verdict_thread_.joinable()) verdict_thread_.join();
}

void Observer::Published(std::int64_t step, const StepTruth& truth) {
  const std::lock_guard lock(mutex_);
  sent_[step] = {Clock::now(), truth, false, false};
}

void Observer::FollowSteps() {
  std::uint64_t after = 0;
  while (!stopping_) {
    grpc::ClientContext* context = nullptr;
    {
      const std::lock_guard lock(mutex_);
      context_ = std::make_unique<grpc::ClientContext>();
      context = context_.get();
    }
    if (stopping_) return;
    v1::WatchStepsRequest request;
    request.set_run(run_);
    request.set_after_sequence(after);
    const auto stream = steps_stub_->WatchSteps(context, request);
    v1::WatchStepsResponse message;
    while (stream->Read(&message)) {
      const Clock::time_point now = Clock::now();
      const std::lock_guard lock(mutex_);
      for (const v1::Step& step : message.steps()) {
        after = step.sequence();
        last_joined_ = std::max<std::int64_t>(last_joined_, step.step());
        const auto sent = sent_.find(step.step());
        if (sent == sent_.end() || sent->second.joined) continue;
        sent->second.joined = true;
        lags_.push_back(std::chrono::duration<double>(now - sent->second.time).count());
      }
    }
    (void)stream->Finish();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the run is not known yet, or the daemon is away
  }
}

void Observer::AskVerdicts() {
  while (!stopping_) {
    const auto context = Within(std::chrono::seconds(10));
    v1::GetVerdictRequest request;
    request.set_run(run_);
    v1::Verdict verdict;
    const Clock::time_point begin = Clock::now();
    const grpc::Status status = verdict_stub_->GetVerdict(context.get(), request, &verdict);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    {
      const std::lock_guard lock(mutex_);
      if (status.ok()) {
        verdict_times_.push_back(seconds);
        ++verdicts_[v1::Action_Name(verdict.action())];
      } else {
        ++verdicts_["no answer"];
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

std::vector<double> Observer::join_lags() {
  const std::lock_guard lock(mutex_);
  return lags_;
}
std::vector<double> Observer::verdict_times() {
  const std::lock_guard lock(mutex_);
  return verdict_times_;
}
std::map<std::string, std::uint64_t> Observer::verdicts() {
  const std::lock_guard lock(mutex_);
  return verdicts_;
}
std::string Observer::Compare(const v1::Step& step) {
  const auto sent = sent_.find(step.step());
  if (sent == sent_.end()) return "was never sent";
  if (std::exchange(sent->second.listed, true)) return "is there twice";
  const StepTruth& truth = sent->second.truth;
  // Each rank's sum is rounded to the step of the fixed point, and the truth is a sum of doubles.
  if (!step.has_loss_nats() || std::fabs(step.loss_nats() - truth.loss_nats()) > 1e-11) {
    return absl::StrFormat("loss %.15g, right is %.15g", step.loss_nats(), truth.loss_nats());
  }
  if (step.unmasked_tokens() != truth.unmasked_tokens) return absl::StrFormat("%d tokens, right are %d", step.unmasked_tokens(), truth.unmasked_tokens);
  if (step.target_fingerprint() != truth.target_fingerprint) return "another target fingerprint";
  return "";
}

std::vector<std::string> Observer::WrongSteps() {
  std::vector<std::string> wrong;
  const auto add = [&wrong](const std::string& line) {
    if (wrong.size() < kWrongSteps) wrong.push_back(line);
  };
  v1::ListStepsRequest request;
  request.set_run(run_);
  request.set_page_size(1000);
  while (true) {
    v1::ListStepsResponse page;
    const auto context = Within(std::chrono::seconds(30));
    if (const grpc::Status status = verdict_stub_->ListSteps(context.get(), request, &page); !status.ok()) {
      add("ListSteps: " + status.error_message());
      return wrong;
    }
    const std::lock_guard lock(mutex_);
    for (const v1::Step& step : page.steps()) {
      if (const std::string what = Compare(step); !what.empty()) {
        add(absl::StrFormat("step %d: %s (%d ranks, %d missing)", step.step(), what, step.ranks(), step.missing_ranks_size()));
      }
    }
    if (page.next_page_token().empty()) break;
    request.set_page_token(page.next_page_token());
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [step, sent] : sent_) {
    if (!sent.listed) add(absl::StrFormat("step %d is not there", step));
  }
  return wrong;
}

std::vector<v1::Incident> Observer::Incidents() {
  std::vector<v1::Incident> incidents;
  v1::ListIncidentsRequest request;
  request.set_run(run_);
  while (true) {
    v1::ListIncidentsResponse page;
    const auto context = Within(std::chrono::seconds(30));
    if (const grpc::Status status = verdict_stub_->ListIncidents(context.get(), request, &page); !status.ok()) {
      std::fprintf(stderr, "fleet: ListIncidents: %s\n", status.error_message().c_str());
      return {};
    }
    incidents.insert(incidents.end(), page.incidents().begin(), page.incidents().end());
    if (page.next_page_token().empty()) return incidents;
    request.set_page_token(page.next_page_token());
  }
}

v1::Run Observer::Run() {
  v1::GetRunRequest request;
  request.set_run(run_);
  v1::Run run;
  const auto context = Within(std::chrono::seconds(30));
  if (const grpc::Status status = verdict_stub_->GetRun(context.get(), request, &run); !status.ok()) {
    std::fprintf(stderr, "fleet: GetRun: %s\n", status.error_message().c_str());
  }
  return run;
}

}  // namespace lossgauge::fleet
