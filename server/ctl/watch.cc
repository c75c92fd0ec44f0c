#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/sparkline.h"
#include "server/ctl/values.h"
#include "server/ctl/watcher.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int32_t kSparkline = 20;

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
  if (const grpc::Status status = watcher.LoadHistory(kSparkline); !status.ok()) return connection.Explain(status, io);
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
