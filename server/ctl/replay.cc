#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "server/ctl/commands.h"
#include "server/ctl/connection.h"
#include "server/ctl/replay_live.h"
#include "server/ctl/replay_output.h"
#include "server/detect/policy.h"
#include "server/replay/bundle.h"
#include "server/replay/journal_replay.h"
#include "server/replay/joined_files.h"
#include "server/replay/live_ring.h"
#include "server/replay/read_log.h"

namespace lossgauge::ctl {
namespace {

constexpr char kNoLog[] =
    ": no training log that is known here. What is read are points with a step and a loss: lines of text or JSON that name both, or a table whose first line "
    "names its columns";

ReplayedRun ReplayFiles(const std::string& name, const std::vector<std::string>& paths, const detect::PolicySet& policies) {
  ReplayedRun run;
  run.run = name;
  replay::Replay replay(name, policies);
  replay::JoinedFiles joined(&replay);
  for (const std::string& path : paths) {
    ReplayedFile& file = run.files.emplace_back();
    file.path = path;
    joined.BeginFile();
    const std::uint64_t before = joined.points();
    if (auto report = replay::ReadLogFile(path, &joined); report.ok()) {
      file.report = *std::move(report);
      file.error = file.report.read_error;
    } else {
      file.error = std::string(report.status().message());
    }
    file.points = joined.points() - before;
  }
  run.points = joined.points();
  run.result = replay.Finish();
  return run;
}

// By its journal, where it has one: the outcome, and in words how it compares with the run's own time. False: there is none, or an archive that breaks off
// before it; what stands before that is judged by its steps, and they say where it breaks off.
bool ReplayByJournal(const std::string& path, const std::optional<detect::PolicySet>& given, ReplayedRun* run) {
  auto replayed = replay::ReplayJournal(path, given);
  if (!replayed.ok() || !replayed->has_value()) return false;
  ReplayedFile& file = run->files.emplace_back();
  file.path = path;
  replay::JournalOutcome& outcome = **replayed;
  file.error = outcome.error;
  file.report.format = absl::StrCat(replay::kBundleFormat, " with a journal");
  file.points = file.report.points = run->points = outcome.steps;
  file.report.attempts = static_cast<std::uint32_t>(outcome.attempts);
  std::vector<std::string>& notes = file.report.notes;
  notes.push_back(absl::StrCat("judged by the journal from step ", outcome.first ? outcome.first->step : 0, " on: records of up to ", outcome.most_ranks,
                               " ranks, events and signs of life, at the times at which lossgauged had them"));
  if (given) {
    notes.push_back("by another policy than in the run's time: verdicts are not compared with those of then");
  } else if (outcome.verdicts_unlike == 0) {
    notes.push_back(absl::StrCat("each of ", outcome.verdicts, " verdicts came out as it was given, to the last bit"));
  } else {
    const replay::Moment& at = *outcome.first_unlike;
    notes.push_back(absl::StrCat(outcome.verdicts_unlike, " of ", outcome.verdicts, " verdicts did NOT come out as they were given, the first after step ",
                                 at.step, " of attempt ", at.attempt, ": another version of lossgauge, or a damaged journal"));
  }
  if (outcome.pieces_lost > 0) {
    notes.push_back(absl::StrCat("the journal begins anew ", outcome.pieces_lost, " times: a restart of lossgauged, or a state that could not be written"));
  }
  run->result = std::move(outcome.result);
  return true;
}

// Bundles are judged by the policy that is in them, unless another is given. Those of one run must not differ in it.
absl::StatusOr<detect::PolicySet> PolicyOf(const std::vector<std::string>& paths, const std::optional<detect::PolicySet>& given) {
  if (given) return *given;
  std::string text, of;  // and the bundle that it is from
  for (const std::string& path : paths) {
    if (!replay::IsBundle(path)) continue;
    const auto own = replay::ReadBundlePolicy(path);
    if (!own.ok()) return own.status();
    if (own->empty() || *own == text) continue;
    if (!text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the policies in ", of, " and ", path, " differ: say with --policy which one judges"));
    }
    text = *own;
    of = path;
  }
  if (text.empty()) return detect::DefaultPolicies();
  return detect::ParsePolicy(text, absl::StrCat(of, ": policy.yaml"));
}

int Run(const Options& options, Io& io) {
  std::optional<detect::PolicySet> given;
  if (options.Has("policy")) {
    auto loaded = detect::LoadPolicy(options.Text("policy"));
    if (!loaded.ok()) {
      io.err << "lossgaugectl: " << Printable(std::string(loaded.status().message())) << "\n";
      return kFailed;
    }
    given = *std::move(loaded);
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> runs;  // name, paths
  if (options.Has("run")) {
    runs.emplace_back(options.Text("run"), options.operands());
  } else {
    for (const std::string& path : options.operands()) {
      std::string name = std::filesystem::path(path).filename().string();
      runs.emplace_back(name.empty() ? path : name, std::vector<std::string>{path});
    }
  }
  if (options.Has("live")) return FeedLive(runs, options, io);
  JsonWriter json(io.out);
  if (options.Has("json")) {
    json.OpenObject();
    json.OpenArray("runs");
  }
  bool all_read = true;
  for (const auto& [name, paths] : runs) {
    const auto policies = PolicyOf(paths, given);
    if (!policies.ok()) {
      io.err << "lossgaugectl: " << Printable(std::string(policies.status().message())) << "\n";
      all_read = false;
      continue;
    }
    ReplayedRun run;
    run.run = name;
    const bool has_journal = paths.size() == 1 && !options.Has("steps") && replay::IsBundle(paths[0]) && ReplayByJournal(paths[0], given, &run);
    if (!has_journal) run = ReplayFiles(name, paths, *policies);
    for (const ReplayedFile& file : run.files) {
      if (file.error.empty() && file.points > 0) continue;
      all_read = false;
      io.err << "lossgaugectl: " << Printable(file.error.empty() ? absl::StrCat(file.path, kNoLog) : file.error) << "\n";
    }
    if (options.Has("json")) {
      WriteReplay(run, json);
    } else {
      if (&name != &runs.front().first) io.out << "\n";
      PrintReplay(run, io);
    }
  }
  if (options.Has("json")) {
    json.CloseArray();
    json.CloseObject();
  }
  return all_read ? kDone : kFailed;
}

}  // namespace

Command ReplayCommand() {
  return {.name = "replay",
          .operands = "FILE...",
          .summary = "judge training logs as lossgauged would have; no daemon needed",
          .details = "Reads logs of Hugging Face trainers, Megatron, DeepSpeed, nanoGPT and its kin, llm.c, CSV, JSON lines, TensorBoard event files and "
                     "our own export and bundles, by their content; the same detectors and policy as lossgauged's go over them. Of a bundle with a journal "
                     "each verdict is compared with the one that was given. The end of a log "
                     "counts as a clean "
                     "end. What a log does not say is absent; where it gives no times of its steps, times are made up, a second a point. Exit code 1 if "
                     "a file cannot be read or holds no training log.",
          .flags = {{"policy", FlagKind::kText, "FILE", "thresholds, as lossgauged's --policy; default: those in the bundle, else lossgauged's defaults"},
                    {"run", FlagKind::kText, "NAME", "the files are one run's logs, in this order; without it each is a run of its own, named as the file"},
                    {"steps", FlagKind::kSwitch, "", "of a bundle: judge its steps over ranks as those of a log, though it has a journal"},
                    {"live", FlagKind::kText, "DIR", "judge nothing here: feed the log to the running lossgauged that drains this ring directory, as a job"},
                    {"rate", FlagKind::kInteger, "N", "with --live: points a second (default 50)", 1,
                     static_cast<std::int64_t>(replay::kMostPointsPerSecond)}},
          .remote = false,
          .run = Run};
}

}  // namespace lossgauge::ctl
