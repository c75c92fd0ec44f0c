#include "server/replay/bundle.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/lossgauge/ring/ring_abi.h"
#include "server/replay/bundle_archive.h"
#include "server/replay/bundle_events.h"
#include "server/replay/flat_object.h"
#include "server/replay/line_reader.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kMaxManifestBytes = 64 * 1024;
constexpr std::size_t kMaxPolicyBytes = 1 << 20;
constexpr std::uint64_t kMaxPartBytes = 64 << 20;
constexpr char kManifestName[] = "MANIFEST.json";

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

// Exactly so many bytes; fewer only at the end.
std::string ReadUpTo(ByteSource* source, std::size_t size) {
  std::string bytes;
  char buffer[16 * 1024];
  while (bytes.size() < size) {
    const std::size_t got = source->Read(buffer, std::min(sizeof buffer, size - bytes.size()));
    if (got == 0) break;
    bytes.append(buffer, got);
  }
  return bytes;
}

// Calls `use` for each member until it says false.
absl::Status ForEachMember(const std::string& path, const std::function<bool(const std::string& name, ByteSource* content)>& use) {
  auto archive = BundleArchive::Open(path);
  if (!archive.ok()) return archive.status();
  while (true) {
    const auto name = archive->Next();
    if (!name.ok()) return name.status();
    if (name->empty()) return absl::OkStatus();
    const bool goes_on = use(*name, archive->content());
    if (const std::string error = archive->content()->error(); !error.empty()) return absl::DataLossError(absl::StrCat(path, ": ", *name, ": ", error));
    if (!goes_on) return absl::OkStatus();
  }
}

struct Manifest {
  bool is_bundle = false;
  std::string run;
  // Of an incident's bundle: the steps that were asked for. Whatever stands before or behind them is not in it.
  std::optional<std::int64_t> first_step, last_step;
  std::string policy_version;                  // of the policy that is in it
  std::vector<std::string> verdict_policies;  // that its verdicts were given by
};

Manifest ReadManifest(ByteSource* content) {
  Manifest manifest;
  FlatObject object;
  const auto text = ReadAll(content, kMaxManifestBytes);
  if (!text || !object.Parse(*text) || object.Text("format") != kBundleFormat) return manifest;
  manifest.is_bundle = true;
  manifest.run = object.Text("run");
  manifest.first_step = object.Whole<std::int64_t>("first_step");
  manifest.last_step = object.Whole<std::int64_t>("last_step");
  manifest.policy_version = object.Text("policy_version");
  manifest.verdict_policies = object.Texts("verdict_policy_versions");
  return manifest;
}

class BundleReader {
 public:
  BundleReader(LogSink* sink, LogReport* report) : sink_(sink), report_(report) {}

  void set_manifest(Manifest manifest) { manifest_ = std::move(manifest); }
  void ReadEvents(ByteSource* content) { events_.Read(content, report_); }

  void ReadSteps(ByteSource* content) {
    LineReader lines(content, report_);
    for (LogLine line; lines.Next(&line);) {
      FlatObject object;
      std::optional<std::int64_t> step;
      if (object.Parse(line.text)) step = object.Whole<std::int64_t>("step");
      if (!step || *step < 0 || *step > kLargestStep) {
        report_->Count(line.terminated ? Oddity::kUnreadable : Oddity::kCutOff, line.number);
        continue;
      }
      UseStep(object, *step, line.number);
    }
    EndAttempt();
  }

  // What whoever reads the verdicts must know.
  void Note() {
    std::string note =
        "judged by steps alone, which do not hold what the conditions integrity and accounting, stalls and lost processes go by, nor what was done with "
        "verdicts";
    if (most_ranks_ > 1) {
      absl::StrAppend(&note, "; the steps are those of ", most_ranks_, " ranks together, so nothing of a single rank either (rank_missing, rank_outlier)");
    }
    report_->notes.push_back(std::move(note));
    const std::string& packed = manifest_.policy_version;
    const auto& named = manifest_.verdict_policies;
    if (named.empty() || (named.size() == 1 && named[0] == packed)) return;
    report_->notes.push_back(absl::StrCat("its verdicts were given by policy ", absl::StrJoin(named, ", "), "; in it is ",
                                          packed.empty() ? std::string("none") : absl::StrCat(packed, ", that of the day when it was packed")));
  }

 private:
  void UseStep(const FlatObject& object, std::int64_t step, std::uint64_t line) {
    LogPoint point;
    point.line = line;
    point.step = step;
    point.attempt_name = object.Text("attempt");
    point.interval_steps = std::max<std::int64_t>(1, object.Whole<std::int64_t>("thinned_steps").value_or(1));
    if (point.interval_steps > step + 1) {  // steps begin at 0
      report_->Count(Oddity::kAbsurdStep, line);
      return;
    }
    const bool begins = report_->attempts == 0 || point.attempt_name != attempt_;
    if (!begins && step <= last_step_) {  // within an attempt steps rise
      report_->Count(Oddity::kRepeatedStep, line);
      return;
    }
    const std::string time = object.Text("receive_time");
    if (begins) {
      BeginAttempt(point.attempt_name, time);
    } else {
      TellEvents(time);
    }
    last_step_ = step;
    most_ranks_ = std::max(most_ranks_, object.Whole<std::uint32_t>("ranks").value_or(0));
    point.attempt = report_->attempts;
    point.index = report_->points++;
    point.loss = object.Number("loss_nats");
    point.grad_norm = object.Number("grad_norm");
    point.learning_rate = object.Number("learning_rate");
    point.step_seconds = object.Number("step_seconds");
    point.max_abs_logit = object.Number("max_abs_logit");
    point.log_z_mean_nats = object.Number("log_z_mean_nats");
    point.log_z_max_nats = object.Number("log_z_max_nats");
    point.reported_loss_nats = object.Number("reported_loss_nats");
    point.objective_nats = object.Number("objective_nats");
    point.z_loss_nats = object.Number("z_loss_nats");
    point.tokens = object.Whole<std::uint64_t>("tokens");
    point.unmasked_tokens = object.Whole<std::uint64_t>("unmasked_tokens");
    point.finite_tokens = object.Whole<std::uint64_t>("finite_tokens");
    point.nonfinite_rows = object.Whole<std::uint64_t>("nonfinite_rows");
    point.nonfinite_grad_rows = object.Whole<std::uint64_t>("nonfinite_grad_rows");
    point.target_fingerprint = object.Whole<std::uint64_t>("target_fingerprint");
    point.mask_fingerprint = object.Whole<std::uint64_t>("mask_fingerprint");
    sink_->OnPoint(point);
    if (begins) TellEvents(time);  // what an attempt told before its first step is of that attempt, too
  }

  void BeginAttempt(const std::string& name, const std::string& time) {
    if (report_->attempts > 0) EndAttempt();
    const bool begins_within = report_->attempts++ == 0 && manifest_.first_step.value_or(0) > 0;
    attempt_ = name;
    if (begins_within) {  // events before it are of a part of the run that is not in the bundle
      (void)events_.TakeResume(name);
      events_.Drop(name, time);
    } else if (const auto resume = events_.TakeResume(name)) {
      sink_->OnJobEvent(*resume);
    }
  }

  // Of an attempt that goes on behind the steps that are in the bundle there is no end.
  void EndAttempt() {
    if (report_->attempts == 0 || (manifest_.last_step && last_step_ >= *manifest_.last_step)) return;
    TellEvents(std::nullopt);
  }

  void TellEvents(const std::optional<std::string>& time) { events_.Tell(attempt_, time, report_, sink_); }

  LogSink* const sink_;
  LogReport* const report_;
  Manifest manifest_;
  BundleEvents events_;
  std::string attempt_;
  std::int64_t last_step_ = -1;
  std::uint32_t most_ranks_ = 0;
};

}  // namespace

bool IsBundle(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a pipe can be read once only
  bool found = false;
  (void)ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    found = name == kManifestName && ReadManifest(content).is_bundle;
    return false;  // it is the first member, so that nobody unpacks another's archive to look for it
  });
  return found;
}

absl::StatusOr<LogReport> ReadBundle(const std::string& path, LogSink* sink) {
  LogReport report;
  report.format = kBundleFormat;
  report.loss_name = "loss_nats";
  report.encoding = "utf-8";
  BundleReader reader(sink, &report);
  // What is damaged before the steps is met again on the way to them.
  const absl::Status of_events = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name == kManifestName) reader.set_manifest(ReadManifest(content));
    if (name != "events.jsonl") return true;
    reader.ReadEvents(content);
    return false;
  });
  bool has_steps = false;
  const absl::Status status = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name != "steps.jsonl") return true;
    has_steps = true;
    HeadSource counted(content, &report.bytes);
    reader.ReadSteps(&counted);
    return false;
  });
  if (!status.ok() && report.points == 0) return status;
  report.read_error = std::string((status.ok() ? of_events : status).message());
  if (!has_steps) return absl::InvalidArgumentError(absl::StrCat(path, ": a bundle without steps.jsonl"));
  reader.Note();
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

std::uint64_t JournalChecksum(std::string_view part) {
  std::uint64_t hash = lg_ring_mix(part.size() + 1);
  for (std::size_t at = 0; at < part.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, part.data() + at, std::min<std::size_t>(8, part.size() - at));
    hash = lg_ring_mix(hash ^ word) + 0x9e3779b97f4a7c15u;
  }
  return hash;
}

absl::StatusOr<std::string> ReadBundleRun(const std::string& path) {
  std::string run;
  const absl::Status status = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name == kManifestName) run = ReadManifest(content).run;
    return false;
  });
  if (!status.ok()) return status;
  return run;
}

absl::Status ReadBundleJournal(const std::string& path, const std::function<bool(std::string_view part)>& use) {
  const auto damaged = [&path](const char* what) { return absl::DataLossError(absl::StrCat(path, ": ", kJournalMember, ": ", what)); };
  absl::Status status;
  const absl::Status of_archive = ForEachMember(path, [&](const std::string& name, ByteSource* content) {
    if (name != kJournalMember) return true;
    if (ReadUpTo(content, sizeof kJournalLine - 1) != kJournalLine) {
      status = damaged("not a journal, or one of another version");
      return false;
    }
    while (true) {
      const std::string head = ReadUpTo(content, 16);
      if (head.empty()) return false;
      const auto number = [&head](std::size_t at) {
        std::uint64_t value = 0;
        for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(head[at + i]);
        return value;
      };
      if (head.size() < 16 || number(0) > kMaxPartBytes) {
        status = damaged(head.size() < 16 ? "it ends within a part" : "a part larger than any");
        return false;
      }
      const std::uint64_t size = number(0);
      const std::string part = ReadUpTo(content, static_cast<std::size_t>(size));
      if (part.size() < size || JournalChecksum(part) != number(8)) {
        status = damaged(part.size() < size ? "it ends within a part" : "a part's checksum is wrong");
        return false;
      }
      if (!use(part)) return false;
    }
  });
  return status.ok() ? of_archive : status;
}

}  // namespace lossgauge::replay
