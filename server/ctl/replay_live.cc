#include "server/ctl/replay_live.h"

#include "absl/strings/str_cat.h"
#include "server/ctl/connection.h"
#include "server/ctl/json_writer.h"
#include "server/replay/joined_files.h"
#include "server/replay/live_ring.h"
#include "server/replay/read_log.h"

namespace lossgauge::ctl {
namespace {

constexpr std::int64_t kPointsPerSecond = 50;

bool Feed(const std::string& name, const std::vector<std::string>& paths, const Options& options, replay::LiveRing* live, Io& io) {
  bool all_read = true;
  replay::JoinedFiles joined(live);
  for (const std::string& path : paths) {
    joined.BeginFile();
    const auto report = replay::ReadLogFile(path, &joined);
    std::string error;
    if (!live->status().ok()) {
      error = absl::StrCat("run ", name, " cannot be fed: ", live->status().message());
    } else if (!report.ok()) {
      error = std::string(report.status().message());
    } else if (!report->read_error.empty()) {
      error = report->read_error;
    } else if (report->points == 0) {
      error = absl::StrCat(path, ": no training log that is known here");
    }
    if (error.empty()) continue;
    io.err << "lossgaugectl: " << Printable(error) << "\n";
    all_read = false;
    if (!live->status().ok()) return false;
  }
  live->Finish();
  if (!options.Has("json") && live->published() > 0) {
    io.out << "Fed " << live->published() << (live->published() == 1 ? " point" : " points") << " as run " << Printable(name) << "\n";
  }
  return all_read;
}

}  // namespace

int FeedLive(const std::vector<std::pair<std::string, std::vector<std::string>>>& runs, const Options& options, Io& io) {
  if (options.Has("policy")) {
    io.err << "lossgaugectl replay: --policy is of no use with --live: lossgauged judges, by its own\n";
    return kWrongUse;
  }
  bool all_fed = true;
  JsonWriter json(io.out);
  if (options.Has("json")) {
    json.OpenObject();
    json.OpenArray("runs");
  }
  for (const auto& [name, paths] : runs) {
    replay::LiveRing live({.directory = options.Text("live"), .run = name, .points_per_second = static_cast<double>(options.Integer("rate", kPointsPerSecond)),
                           .sleep = nullptr});
    all_fed = Feed(name, paths, options, &live, io) && all_fed;
    if (options.Has("json")) {
      json.OpenObject();
      json.Text("run", name);
      json.Wide("pointsFed", live.published());
      json.CloseObject();
    }
  }
  if (options.Has("json")) {
    json.CloseArray();
    json.CloseObject();
  }
  return all_fed ? kDone : kFailed;
}

}  // namespace lossgauge::ctl
