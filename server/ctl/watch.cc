// Two streams, verdicts and steps, feed one state; the calling thread alone writes. A stream that breaks is opened again with growing pauses, the one of
// the steps from the last sequence number seen, so that nothing is missed or shown twice.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/sparkline.h"
#include "server/ctl/values.h"

namespace lossgauge::ctl {
namespace {

constexpr std::size_t kSparkline = 20;
constexpr std::chrono::milliseconds kFirstPause{250};
constexpr std::chrono::milliseconds kLongestPause{5000};

// Errors that another attempt cannot mend.
bool IsFinal(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return true;
    default:
      return false;
  }
}

class Watcher {
 public:
  Watcher(Connection& connection, const std::string& run) : connection_(connection), run_(run) {}

  ~Watcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      if (verdict_context_) verdict_context_->TryCancel();
      if (step_context_) step_context_->TryCancel();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // The newest steps, for the sparkline; also finds out whether there is such a run at all.
  grpc::Status LoadHistory() {
    v1::ListStepsRequest request;
    request.set_run(run_);
    request.set_tail(kSparkline);
    request.set_page_size(kSparkline);
    v1::ListStepsResponse answer;
    const auto context = connection_.NewContext();
    const grpc::Status status = connection_.stub().ListSteps(context.get(), request, &answer);
    for (const v1::Step& step : answer.steps()) {
      Remember(step);
      last_sequence_ = step.sequence();
    }
    return status;
  }

  void Start() {
    threads_.emplace_back([this] { WatchVerdicts(); });
    threads_.emplace_back([this] { WatchSteps(); });
  }

  struct News {
    std::vector<v1::Step> steps;
    std::optional<v1::Verdict> verdict;
    std::uint64_t skipped = 0;
    bool connected = true;
    std::optional<grpc::Status> failed;
  };

  // Waits until there is something new, at most `patience`.
  News Next(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return !news_.steps.empty() || news_.verdict || news_.failed; });
    News news = std::move(news_);
    news_ = News();
    news.connected = connected_;
    return news;
  }

  std::deque<double> History() {
    const std::lock_guard lock(mutex_);
    return history_;
  }

 private:
  // One connection after the other until the end; `open` runs one and returns how it ended.
  template <class OpenStream>
  void Keep(std::unique_ptr<grpc::ClientContext>* context, OpenStream open_stream) {
    std::chrono::milliseconds pause = kFirstPause;
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        *context = std::make_unique<grpc::ClientContext>();
      }
      bool received = false;
      const grpc::Status status = open_stream(context->get(), &received);
      std::unique_lock lock(mutex_);
      if (stopping_) return;
      connected_ = false;
      if (!status.ok() && IsFinal(status)) {
        news_.failed = status;
        changed_.notify_all();
        return;
      }
      pause = received ? kFirstPause : std::min(pause * 2, kLongestPause);
      changed_.wait_for(lock, pause, [this] { return stopping_; });
    }
  }

  void WatchVerdicts() {
    Keep(&verdict_context_, [this](grpc::ClientContext* context, bool* received) {
      v1::WatchVerdictRequest request;
      request.set_run(run_);
      const auto reader = connection_.stub().WatchVerdict(context, request);
      v1::Verdict verdict;
      while (reader->Read(&verdict)) {
        *received = true;
        const std::lock_guard lock(mutex_);
        connected_ = true;
        news_.verdict = verdict;
        changed_.notify_all();
      }
      return reader->Finish();
    });
  }

  void WatchSteps() {
    Keep(&step_context_, [this](grpc::ClientContext* context, bool* received) {
      v1::WatchStepsRequest request;
      request.set_run(run_);
      if (last_sequence_ > 0) request.set_after_sequence(last_sequence_);
      const auto reader = connection_.stub().WatchSteps(context, request);
      v1::WatchStepsResponse message;
      while (reader->Read(&message)) {
        *received = true;
        const std::lock_guard lock(mutex_);
        connected_ = true;
        news_.skipped += message.skipped();
        for (const v1::Step& step : message.steps()) {
          if (step.sequence() <= last_sequence_) continue;
          last_sequence_ = step.sequence();
          news_.steps.push_back(step);
          Remember(step);
        }
        changed_.notify_all();
      }
      return reader->Finish();
    });
  }

  void Remember(const v1::Step& step) {
    if (!step.has_loss_nats()) return;
    history_.push_back(step.loss_nats());
    if (history_.size() > kSparkline) history_.pop_front();
  }

  Connection& connection_;
  const std::string run_;
  std::uint64_t last_sequence_ = 0;  // before Start(), then the step thread's alone
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  bool connected_ = true;
  News news_;
  std::deque<double> history_;
  std::unique_ptr<grpc::ClientContext> verdict_context_;
  std::unique_ptr<grpc::ClientContext> step_context_;
};

std::string StepText(const v1::Step& step) {
  return absl::StrCat("step ", step.step(), "  loss ", Optional(step, &v1::Step::has_loss_nats, &v1::Step::loss_nats), "  max|z| ",
                      Optional(step, &v1::Step::has_max_abs_logit, &v1::Step::max_abs_logit), "  grad ",
                      Optional(step, &v1::Step::has_grad_norm, &v1::Step::grad_norm));
}

// What the screen shows, and how it got there.
class Display {
 public:
  Display(const Options& options, Io& io) : io_(io), json_(options.Has("json")) {}

  void Show(const Watcher::News& news, const std::deque<double>& history) {
    if (news.verdict) ShowVerdict(*news.verdict);
    for (const v1::Step& step : news.steps) ShowStep(step);
    if (news.skipped > 0 && !json_) Line(absl::StrCat(news.skipped, " steps were no longer kept and are not shown"));
    if (!json_ && news.connected != connected_) Line(news.connected ? "connected again" : "disconnected, trying again");
    connected_ = news.connected;
    if (io_.terminal && !json_) Redraw(history);
    io_.out.flush();
  }

  // Leaves the live line as the last one.
  void Finish() {
    if (io_.terminal && !json_ && drawn_) io_.out << "\n";
    io_.out.flush();
  }

 private:
  void ShowVerdict(const v1::Verdict& verdict) {
    if (json_) {
      io_.out << "{\"verdict\":" << OneLine(verdict) << "}\n";
    } else if (verdict.action() != action_ || verdict.reason() != reason_) {
      Line(absl::StrCat(Coloured(io_, ToneOf(verdict.action()), ActionName(verdict.action())), "  ", Printable(verdict.reason())));
    }
    action_ = verdict.action();
    reason_ = verdict.reason();
  }

  void ShowStep(const v1::Step& step) {
    if (json_) {
      io_.out << "{\"step\":" << OneLine(step) << "}\n";
    } else if (!io_.terminal) {
      io_.out << StepText(step) << "  " << ActionName(action_) << "\n";
    }
    last_step_ = step;
    last_step_time_ = io_.now();
  }

  static std::string OneLine(const google::protobuf::Message& message) {
    std::string json = ToJson(message, false);
    while (!json.empty() && json.back() == '\n') json.pop_back();
    return json;
  }

  void Line(const std::string& text) { io_.out << (drawn_ ? "\r\x1b[K" : "") << text << "\n"; }

  void Redraw(const std::deque<double>& history) {
    const v1::Action shown = connected_ ? action_ : v1::UNKNOWN;  // never a good verdict without a connection
    const std::string word = ActionName(shown);
    const std::vector<double> losses(history.begin(), history.end());
    std::string rest = absl::StrCat("  ", last_step_ ? StepText(*last_step_) : "no step yet", "  ", Sparkline(losses, io_.unicode));
    if (last_step_) absl::StrAppend(&rest, "  ", Span(io_.now() - last_step_time_));
    const std::size_t room = io_.width > word.size() + 1 ? io_.width - word.size() - 1 : 1;
    io_.out << "\r\x1b[K" << Coloured(io_, ToneOf(shown), word) << Fit(rest, room, io_.unicode);
    drawn_ = true;
  }

  Io& io_;
  const bool json_;
  v1::Action action_ = v1::ACTION_UNSPECIFIED;
  std::string reason_;
  std::optional<v1::Step> last_step_;
  absl::Time last_step_time_;
  bool connected_ = true;
  bool drawn_ = false;
};

int Run(const Options& options, Io& io) {
  Connection connection(options, io);
  Watcher watcher(connection, options.operand(0));
  if (const grpc::Status status = watcher.LoadHistory(); !status.ok()) return connection.Explain(status, io);
  watcher.Start();
  Display display(options, io);
  std::int64_t left = options.Integer("count", INT64_MAX);
  while (left > 0) {
    Watcher::News news = watcher.Next(std::chrono::seconds(1));
    if (static_cast<std::int64_t>(news.steps.size()) > left) news.steps.resize(static_cast<std::size_t>(left));
    left -= static_cast<std::int64_t>(news.steps.size());
    display.Show(news, watcher.History());
    if (news.failed) {
      display.Finish();
      return connection.Explain(*news.failed, io);
    }
    if (!io.out.good()) return kFailed;  // whoever read us is gone
  }
  display.Finish();
  return kDone;
}

}  // namespace

Command WatchCommand() {
  return {.name = "watch",
          .operands = "RUN",
          .summary = "follow a run live: verdict, loss with a sparkline, max|z|, gradient norm",
          .details = "On a terminal one line is kept up to date and verdict changes are written above it; otherwise one line a step. With --json: "
                     "one object a line, {\"verdict\": ...} or {\"step\": ...}. Reconnects by itself; ends with Ctrl-C or --count.",
          .flags = {{"count", FlagKind::kInteger, "N", "end after N steps", 1}},
          .remote = true,
          .run = Run};
}

}  // namespace lossgauge::ctl
