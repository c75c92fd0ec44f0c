#include "server/ctl/verdict_wait.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace lossgauge::ctl {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

bool MayPass(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::NOT_FOUND:
      return true;
    default:
      return false;
  }
}

class Wait {
 public:
  Wait(Connection& connection, const std::string& run, const WaitOptions& options)
      : connection_(connection), run_(run), options_(options), end_(absl::Now() + options.limit), last_heard_(absl::Now()) {}

  WaitResult Run() {
    absl::Duration pause = kFirstPause;
    while (!done_) {
      const absl::Time asked = absl::Now();
      if (Ask() && !done_) Follow();
      if (done_) break;
      const absl::Time now = absl::Now();
      if (now - asked >= kLongestPause) {
        pause = kFirstPause;
        if (result_.last_error.ok()) continue;
      }
      const absl::Time give_up = last_heard_ + options_.patience;
      if (!result_.last_error.ok() && now >= std::min(end_, give_up)) {
        // Out of reach or not known as the time ends: that is what there is to say, not that nothing happened.
        if (result_.last_error.error_code() == grpc::StatusCode::NOT_FOUND) result_.failed = result_.last_error;
        Finish(Outcome::kUnreachable);
        break;
      }
      // Also where a stream ended at once without an error: nobody is asked in a tight loop.
      absl::SleepFor(std::min({pause, end_ - now, give_up - now}));
      pause = std::min(pause * 2, kLongestPause);
    }
    return std::move(result_);
  }

 private:
  void Finish(Outcome outcome) {
    result_.outcome = outcome;
    done_ = true;
  }

  // The present verdict, promptly or not at all: a stream alone could not tell a quiet lossgauged from one that is stopped.
  bool Ask() {
    if (absl::Now() >= end_ && result_.verdict && result_.last_error.ok()) {
      Finish(Outcome::kTimeout);
      return false;
    }
    v1::GetVerdictRequest request;
    request.set_run(run_);
    v1::Verdict verdict;
    const auto context = connection_.NewContext();
    const grpc::Status status = connection_.stub().GetVerdict(context.get(), request, &verdict);
    return status.ok() ? Take(verdict) : Fail(status);
  }

  void Follow() {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::min(end_, absl::Now() + options_.stream_life)));
    v1::WatchVerdictRequest request;
    request.set_run(run_);
    const auto reader = connection_.stub().WatchVerdict(&context, request);
    v1::Verdict verdict;
    bool good = true;
    while (good && !done_ && reader->Read(&verdict)) good = Take(verdict);
    if (done_ || !good) context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (!done_ && good && !status.ok() && status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) Fail(status);
  }

  bool Take(const v1::Verdict& verdict) {
    if (const grpc::Status status = CheckAnswer(run_, verdict); !status.ok()) return Fail(status);
    last_heard_ = absl::Now();
    result_.verdict = verdict;
    result_.last_error = grpc::Status::OK;
    const Outcome outcome = OutcomeOf(verdict);
    if (options_.wanted.count(outcome) != 0 && (options_.attempt.empty() || verdict.attempt() == options_.attempt)) Finish(outcome);
    return true;
  }

  bool Fail(const grpc::Status& status) {
    result_.last_error = status;
    if (!MayPass(status)) {
      result_.failed = status;
      Finish(Outcome::kUnreachable);
    }
    return false;
  }

  Connection& connection_;
  const std::string& run_;
  const WaitOptions& options_;
  const absl::Time end_;
  absl::Time last_heard_;
  bool done_ = false;
  WaitResult result_;
};

}  // namespace

WaitResult WaitForVerdict(Connection& connection, const std::string& run, const WaitOptions& options) {
  return Wait(connection, run, options).Run();
}

grpc::Status CheckAnswer(const std::string& run, const v1::Verdict& verdict_untrusted) {
  if (verdict_untrusted.run() == run) return grpc::Status::OK;
  return {grpc::StatusCode::DATA_LOSS, absl::StrCat("the answer is about run \"", verdict_untrusted.run(), "\", not \"", run, "\"")};
}

}  // namespace lossgauge::ctl
