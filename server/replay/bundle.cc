#include "server/replay/bundle.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rapidjson/document.h"
#include "server/replay/bundle_archive.h"
#include "server/replay/line_reader.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kMaxManifestBytes = 64 * 1024;
constexpr std::size_t kMaxPolicyBytes = 1 << 20;
constexpr std::size_t kMaxEvents = 1'000'000;

// Up to `most` bytes; nothing if there are more.
std::optional<std::string> ReadAll(ByteSource* source, std::size_t most) {
  std::string text;
  char buffer[16 * 1024];
  for (std::size_t bytes = source->Read(buffer, sizeof buffer); bytes > 0; bytes = source->Read(buffer, sizeof buffer)) {
    if (text.size() + bytes > most) return std::nullopt;
    text.append(buffer, bytes);
  }
  return text;
}

// Calls `use` for each member until it says false.
absl::Status ForEachMember(const std::string& path, const std::function<bool(const std::string& name, ByteSource* content)>& use) {
  auto archive = BundleArchive::Open(path);
  if (!archive.ok()) return archive.status();
  while (true) {
    const auto name = archive->Next();
    if (!name.ok()) return name.status();
    if (name->empty() || !use(*name, archive->content())) return absl::OkStatus();
    if (const std::string error = archive->content()->error(); !error.empty()) return absl::DataLossError(absl::StrCat(path, ": ", *name, ": ", error));
  }
}

// A field of one object.
class Object {
 public:
  bool Parse(std::string_view text) {
    document_.Parse<rapidjson::kParseIterativeFlag>(text.data(), text.size());
    return !document_.HasParseError() && document_.IsObject();
  }
  std::string Text(const char* name) const {
    const auto* value = Find(name);
    return value != nullptr && value->IsString() ? std::string(value->GetString(), value->GetStringLength()) : std::string();
  }
  std::optional<double> Number(const char* name) const {
    const auto* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (value->IsNumber()) return value->GetDouble();
    const std::string text = Text(name);
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
    return std::nullopt;
  }
  // Numbers, and numbers as text.
  template <class Integer>
  std::optional<Integer> Whole(const char* name) const {
    const auto* value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (value->IsUint64() && value->GetUint64() <= static_cast<std::uint64_t>(std::numeric_limits<Integer>::max())) {
      return static_cast<Integer>(value->GetUint64());
    }
    if (value->IsInt64() && std::numeric_limits<Integer>::is_signed) return static_cast<Integer>(value->GetInt64());
    if (!value->IsString()) return std::nullopt;
    Integer number{};
    const char* end = value->GetString() + value->GetStringLength();
    const auto [rest, error] = std::from_chars(value->GetString(), end, number);
    return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
  }

 private:
  const rapidjson::Value* Find(const char* name) const {
    const auto found = document_.FindMember(name);
    return found == document_.MemberEnd() ? nullptr : &found->value;
  }
  rapidjson::Document document_;
};

struct BundleEvent {
  std::string time;  // RFC 3339, UTC: sorts as text while the number of digits behind the point is the same, see Before
  LogEvaluation evaluation;
  LogCheckpoint checkpoint;
  bool is_checkpoint = false;
};

// "2026-03-04T05:06:07Z" and "2026-03-04T05:06:07.250Z": the point sorts before the Z, as it should not.
bool Before(std::string_view a, std::string_view b) {
  const auto cut = [](std::string_view time) { return time.ends_with('Z') ? time.substr(0, time.size() - 1) : time; };
  return cut(a) < cut(b);
}

class BundleReader {
 public:
  BundleReader(LogSink* sink, LogReport* report) : sink_(sink), report_(report) {}

  void ReadEvents(ByteSource* content) {
    LogReport lines_report;
    LineReader lines(content, &lines_report);
    for (LogLine line; lines.Next(&line) && events_.size() < kMaxEvents;) {
      Object object;
      if (!object.Parse(line.text)) {
        report_->Count(Oddity::kUnreadable, line.number);
        continue;
      }
      BundleEvent event;
      const std::string kind = object.Text("kind");
      event.is_checkpoint = kind == "checkpoint";
      if (!event.is_checkpoint && kind != "evaluation") continue;
      event.time = object.Text("receiveTime");
      const auto step = object.Whole<std::int64_t>("step");
      if (event.is_checkpoint && !step) continue;
      event.checkpoint = {line.number, step.value_or(0), object.Text("text")};
      event.evaluation = {line.number, step, object.Number("value").value_or(std::numeric_limits<double>::quiet_NaN())};
      events_.push_back(std::move(event));
    }
  }

  void ReadSteps(ByteSource* content) {
    LineReader lines(content, report_);
    for (LogLine line; lines.Next(&line);) {
      Object object;
      std::optional<std::int64_t> step;
      if (object.Parse(line.text)) step = object.Whole<std::int64_t>("step");
      if (!step || *step < 0 || *step > kLargestStep) {
        report_->Count(line.terminated ? Oddity::kUnreadable : Oddity::kCutOff, line.number);
        continue;
      }
      UseStep(object, *step, line.number);
    }
    TellEvents(std::nullopt);
  }

 private:
  void UseStep(const Object& object, std::int64_t step, std::uint64_t line) {
    LogPoint point;
    point.line = line;
    point.step = step;
    point.attempt_name = object.Text("attempt");
    if (report_->attempts == 0 || point.attempt_name != attempt_) {
      ++report_->attempts;
      attempt_ = point.attempt_name;
      last_step_ = -1;
    }
    if (step <= last_step_) {  // within an attempt steps rise
      report_->Count(Oddity::kRepeatedStep, line);
      return;
    }
    last_step_ = step;
    TellEvents(object.Text("receive_time"));
    point.attempt = report_->attempts;
    point.index = report_->points++;
    point.interval_steps = std::max<std::int64_t>(1, object.Whole<std::int64_t>("thinned_steps").value_or(1));
    point.loss = object.Number("loss_nats");
    point.grad_norm = object.Number("grad_norm");
    point.learning_rate = object.Number("learning_rate");
    point.step_seconds = object.Number("step_seconds");
    point.max_abs_logit = object.Number("max_abs_logit");
    point.log_z_mean_nats = object.Number("log_z_mean_nats");
    point.log_z_max_nats = object.Number("log_z_max_nats");
    point.reported_loss_nats = object.Number("reported_loss_nats");
    point.tokens = object.Whole<std::uint64_t>("tokens");
    point.unmasked_tokens = object.Whole<std::uint64_t>("unmasked_tokens");
    point.finite_tokens = object.Whole<std::uint64_t>("finite_tokens");
    point.nonfinite_rows = object.Whole<std::uint64_t>("nonfinite_rows");
    point.nonfinite_grad_rows = object.Whole<std::uint64_t>("nonfinite_grad_rows");
    point.target_fingerprint = object.Whole<std::uint64_t>("target_fingerprint");
    point.mask_fingerprint = object.Whole<std::uint64_t>("mask_fingerprint");
    sink_->OnPoint(point);
  }

  // Those before `time`; without one, all that are left.
  void TellEvents(const std::optional<std::string>& time) {
    for (; next_event_ < events_.size(); ++next_event_) {
      const BundleEvent& event = events_[next_event_];
      if (time && !Before(event.time, *time)) return;
      if (report_->points == 0) continue;  // of a part of the run that is not in the bundle
      if (event.is_checkpoint) {
        ++report_->checkpoints;
        sink_->OnCheckpoint(event.checkpoint);
      } else if (std::isfinite(event.evaluation.loss_nats)) {
        ++report_->evaluations;
        sink_->OnEvaluation(event.evaluation);
      }
    }
  }

  LogSink* const sink_;
  LogReport* const report_;
  std::vector<BundleEvent> events_;
  std::size_t next_event_ = 0;
  std::string attempt_;
  std::int64_t last_step_ = -1;
};

}  // namespace

bool IsBundle(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a pipe can be read once only
  bool found = false;
  (void)ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name != "MANIFEST.json") return true;
    Object manifest;
    const auto text = ReadAll(content, kMaxManifestBytes);
    found = text && manifest.Parse(*text) && manifest.Text("format") == kBundleFormat;
    return false;
  });
  return found;
}

absl::StatusOr<LogReport> ReadBundle(const std::string& path, LogSink* sink) {
  LogReport report;
  report.format = kBundleFormat;
  report.loss_name = "loss_nats";
  report.encoding = "utf-8";
  BundleReader reader(sink, &report);
  absl::Status status = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name != "events.jsonl") return true;
    reader.ReadEvents(content);
    return false;
  });
  if (!status.ok()) return status;
  bool has_steps = false;
  status = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name != "steps.jsonl") return true;
    has_steps = true;
    HeadSource counted(content, &report.bytes);
    reader.ReadSteps(&counted);
    return false;
  });
  if (!status.ok()) return status;
  if (!has_steps) return absl::InvalidArgumentError(absl::StrCat(path, ": a bundle without steps.jsonl"));
  return report;
}

absl::StatusOr<std::string> ReadBundlePolicy(const std::string& path) {
  std::optional<std::string> text = "";
  const absl::Status status = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name != "policy.yaml") return true;
    text = ReadAll(content, kMaxPolicyBytes);
    return false;
  });
  if (!status.ok()) return status;
  if (!text) return absl::InvalidArgumentError(absl::StrCat(path, ": policy.yaml is larger than 1 MiB"));
  return *text;
}

}  // namespace lossgauge::replay
