#include "server/main/flags.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/main/command_line.h"

ABSL_FLAG(std::string, ring_dir, "",
          "Directories with the rings of training jobs, separated by commas; may be given several times. Default: LOSSGAUGE_RING_DIR if set, "
          "else /dev/shm/lossgauge-<uid>, where the client library puts them. A directory that does not exist yet is waited for.");
ABSL_FLAG(std::string, state_dir, "",
          "Where state and history are kept (one SQLite file), so that a restart loses and doubles nothing. Default: /var/lib/lossgauge for "
          "root, else $XDG_STATE_HOME/lossgauge or ~/.local/state/lossgauge; a daemon's has \"-daemon\" behind it. \"none\": nothing survives.");
ABSL_FLAG(std::string, http_listen, "127.0.0.1:9788",
          "host:port of /metrics, /api/v1 and the status page. Loopback by default: who may connect may read everything. Port 0: any free one. "
          "\"none\": off.");
ABSL_FLAG(std::string, http_allowed_hosts, "",
          "Names, separated by commas, that the Host header may carry besides IP addresses and localhost while --http_listen is loopback: for a proxy in "
          "front. Other names are refused, so that a web page cannot reach the API through DNS.");
ABSL_FLAG(std::string, grpc_listen, "127.0.0.1:9789",
          "host:port of the gRPC services. Loopback by default: who may connect may read everything, and there "
          "without --token_file also acknowledge incidents. Port 0: any free one. "
          "\"none\": off.");
ABSL_FLAG(std::string, log_format, "text", "text or json (one object a line). Logs go to stderr.");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error.");
ABSL_FLAG(std::string, policy, "", "YAML file with thresholds of detectors and verdicts. Default: built in. Read again on SIGHUP.");
ABSL_FLAG(std::string, mode, "advise",
          "advise or shadow. In shadow mode runs are judged and shown, but health stays SERVING and shipped alerts stay calm.");
ABSL_FLAG(absl::Duration, join_timeout, absl::Seconds(2),
          "How long a step waits for the records of further ranks, counted from its first. Longer: slower ranks still count; shorter: a missing "
          "rank is known sooner. 10ms to 10m.");
ABSL_FLAG(absl::Duration, linger, absl::Minutes(5),
          "How long counters and verdict of an ended run stay on pages: long enough for a last scrape. Its gauges go at once.");
ABSL_FLAG(absl::Duration, lost_linger, absl::Hours(1),
          "How long a run stays on pages whose producers died without an end and did not come back: long enough to be asked for a verdict.");
ABSL_FLAG(absl::Duration, frozen_after, absl::Seconds(10),
          "A producer that holds its lock without a heartbeat (one a second) for so long is frozen. 2s to 10m.");
ABSL_FLAG(absl::Duration, stuck_after, absl::Seconds(30),
          "Once the drain thread of lossgauged itself has completed no cycle for so long (a disk that does not answer, a fault of its own), /-/ready and the health of "
          "the gRPC server say so; a daemon whose thread has stood still for four times as long outside its disk is not /-/healthy either. 1s to 10m.");
ABSL_FLAG(std::int64_t, max_runs, 64,
          "Runs in memory at a time; more are refused and counted, ended ones make room. Bounds memory and series. 1 to 4096.");
ABSL_FLAG(std::int64_t, max_runs_per_sender, 16,
          "Daemon: runs that one sidecar may have at a time, those that are over left out; more are refused and counted, so that one sender does not take "
          "all of --max_runs. 0 to 4096; 0: no limit.");
ABSL_FLAG(std::int64_t, max_runs_per_client, 0,
          "Daemon: runs that all sidecars of one address may have at a time, a run that several of them have counted once; more are refused and counted. A sidecar's "
          "name is its own to choose, its address is not. 0 to 4096; 0: three quarters of --max_runs. Behind a proxy, which makes one address of many: --max_runs.");
ABSL_FLAG(std::int64_t, max_ranks, 0,
          "Ranks of one attempt, on this node or in the whole job; more are refused and counted. 1 to 65536; 0: 1024 for a sidecar, 32768 for a daemon.");
ABSL_FLAG(std::int64_t, max_rank_series, 500,
          "A run with more ranks gets run-level series only (lossgauge_run_*), shows only ranks that are not well, and its history keeps minimum, mean, "
          "maximum and outliers over ranks instead of each rank. 0 to 16384.");
ABSL_FLAG(std::string, run_series, "auto",
          "auto or all: which runs and ranks /metrics shows. auto: all, but of a sidecar with --forward_to none that its daemon shows, so that one Prometheus "
          "may scrape both; it shows ranks of runs of more than --max_rank_series ranks, which the daemon leaves out. all: everything.");
ABSL_FLAG(std::string, forward_to, "",
          "Sidecar: host:port of a daemon, or of two separated by a comma, that get all records and events of this node. Each gets everything; what one "
          "cannot take now is kept in the state directory.");
ABSL_FLAG(std::int64_t, forward_spool_mebibytes, 256,
          "Sidecar: how much is kept for daemons that are away, MiB. Beyond it the oldest is dropped and counted. 2 to 1048576.");
ABSL_FLAG(std::int64_t, max_steps, 4096,
          "Steps of a run kept in memory for pages and watchers; older ones come from history. 64 to 100000.");
ABSL_FLAG(bool, reclaim, false,
          "Unlink rings whose producer is dead and whose records are all in the state, 5 minutes after the death. Off by default, because "
          "the next producer of the same rank does it too and this process then needs no write permission.");
ABSL_FLAG(bool, exit_after_end, false,
          "End with exit code 0 once every producer that was seen has ended, or has been gone for a minute, and all of its records are read. For an "
          "ordinary container beside a job, which would keep the job's pod from completing; a native sidecar does not need it.");
ABSL_FLAG(std::int64_t, history_mebibytes, 1024,
          "Size of the history on disk, MiB. Beyond it the oldest steps are thinned first, and once all are, the oldest dropped. 16 to 1048576.");
ABSL_FLAG(absl::Duration, history_full, absl::Hours(48),
          "So long each step is kept as it was; older ones are thinned: 64 steps become one row with mean, minimum and maximum.");
ABSL_FLAG(absl::Duration, history_age, absl::Hours(720), "Steps older than this are dropped from history, and so is a run without any left.");
ABSL_FLAG(std::int64_t, journal_mebibytes, 64,
          "MiB, beside the history, of what judges were told (each rank's records, signs of life), with which `lossgaugectl replay` gives the verdicts "
          "of a bundle again, bit for bit. About 300 bytes a record; the oldest goes first. Runs of more than 256 ranks have none. 0: off. 0 to 65536.");

namespace lossgauge::main {
namespace {

constexpr const char* kUsage =
    "lossgauged sidecar [flags]\n"
    "  Watches the training jobs of this node: drains their rings, joins the ranks, judges each step, and answers\n"
    "  on HTTP (/metrics, status page) and gRPC (verdicts). With --forward_to it sends all it reads on to daemons.\n"
    "lossgauged daemon [flags]\n"
    "  Watches whole jobs: receives what sidecars forward, on --grpc_listen, and then does the same.\n"
    "\n"
    "Flags may stand in a file, one a line: --flagfile=FILE.\n"
    "Environment: LOSSGAUGE_RING_DIR, XDG_STATE_HOME, HOME (defaults of flags); NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID (of systemd).\n"
    "Signals: SIGTERM, SIGINT end it in order within 5 s; SIGHUP reads the policy again.\n"
    "Exit codes: 0 ended by a signal; 1 it could not start; 2 wrong command line.\n";

[[noreturn]] void UsageError(const std::string& message) {
  std::cerr << "lossgauged: " << message << "\nTry: lossgauged --help\n";
  std::exit(2);
}

void PrintHelp() {
  std::cout << kUsage << "\nFlags:\n";
  std::map<std::string, absl::CommandLineFlag*> sorted;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOurs(*flag)) sorted.emplace(std::string(name), flag);
  }
  for (const auto& [name, flag] : sorted) {
    std::cout << "  --" << name << " (default: " << (flag->DefaultValue().empty() ? "see below" : flag->DefaultValue()) << ")\n      ";
    std::size_t column = 6;
    std::string word;
    for (const char c : flag->Help() + " ") {
      if (c != ' ') {
        word += c;
        continue;
      }
      if (column + word.size() > 110) {
        std::cout << "\n      ";
        column = 6;
      }
      std::cout << word << ' ';
      column += word.size() + 1;
      word.clear();
    }
    std::cout << "\n";
  }
}

// Abseil ends the process with 1 for what is wrong on a command line; our convention is 2.
bool g_parsing = false;
void ExitWithTwoWhileParsing(int status, void*) {
  if (g_parsing && status != 0) {
    std::cerr.flush();
    _exit(2);
  }
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text + ",") {
    if (c != ',') {
      part += c;
      continue;
    }
    while (part.size() > 1 && part.back() == '/') part.pop_back();
    if (!part.empty() && std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    part.clear();
  }
  return parts;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string DefaultStateDir() {
  if (geteuid() == 0) return "/var/lib/lossgauge";
  if (const std::string xdg = Environment("XDG_STATE_HOME"); xdg.starts_with("/")) return xdg + "/lossgauge";
  if (const std::string home = Environment("HOME"); home.starts_with("/")) return home + "/.local/state/lossgauge";
  UsageError("--state_dir has no default: neither XDG_STATE_HOME nor HOME is set. Give a directory, or \"none\"");
}

std::int64_t DurationFlag(const char* name, absl::Duration value, absl::Duration least, absl::Duration most) {
  if (value < least || value > most) {
    UsageError(absl::StrCat("--", name, "=", absl::FormatDuration(value), " is out of range: ", absl::FormatDuration(least), " to ",
                            absl::FormatDuration(most)));
  }
  return absl::ToInt64Nanoseconds(value);
}

std::int64_t NumberFlag(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) UsageError(absl::StrCat("--", name, "=", value, " is out of range: ", least, " to ", most));
  return value;
}

std::string ChoiceFlag(const char* name, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  std::string list;
  for (const std::string& choice : choices) absl::StrAppend(&list, list.empty() ? "" : ", ", choice);
  UsageError(absl::StrCat("--", name, "=", value, " is none of: ", list));
}

}  // namespace

Flags ParseFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-help" || argument == "-h" || argument == "help") {
      PrintHelp();
      std::exit(0);
    }
    if (argument == "--version" || argument == "-version") {
      std::cout << "lossgauged " << LOSSGAUGE_VERSION << "\n";
      std::exit(0);
    }
  }
  const absl::StatusOr<CommandLine> line = ReadCommandLine({argv + 1, argv + argc});
  if (!line.ok()) UsageError(std::string(line.status().message()));
  std::vector<std::string> rest = {argv[0]};
  rest.insert(rest.end(), line->words.begin(), line->words.end());
  std::vector<char*> pointers;
  for (std::string& argument : rest) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  absl::SetProgramUsageMessage(kUsage);
  on_exit(ExitWithTwoWhileParsing, nullptr);
  g_parsing = true;
  const std::vector<char*> positional = absl::ParseCommandLine(static_cast<int>(rest.size()), pointers.data());
  g_parsing = false;
  std::vector<std::string> ring_dirs = line->ring_dirs;
  if (const std::string from_environment = absl::GetFlag(FLAGS_ring_dir); !from_environment.empty()) ring_dirs.push_back(from_environment);
  if (positional.size() < 2) {
    UsageError("what should it be? \"lossgauged sidecar\" watches the jobs of this node, \"lossgauged daemon\" those of many nodes");
  }
  const std::string role = positional[1];
  if (role != "sidecar" && role != "daemon") UsageError(absl::StrCat("unknown role \"", role, "\"; known: sidecar, daemon"));
  if (positional.size() > 2) UsageError(absl::StrCat("unexpected argument \"", std::string(positional[2]), "\""));

  Flags flags;
  const bool is_daemon = role == "daemon";
  flags.role = is_daemon ? Role::kDaemon : Role::kSidecar;
  if (is_daemon && !ring_dirs.empty()) UsageError("--ring_dir is for a sidecar: a daemon reads no rings");
  for (const std::string& entry : ring_dirs) {
    std::vector<std::string> directories = Split(entry);
    if (directories.empty()) UsageError(absl::StrCat("--ring_dir=\"", entry, "\" names no directory"));
    for (std::string& directory : directories) flags.ring_dirs.push_back(std::move(directory));
  }
  if (flags.ring_dirs.empty()) flags.ring_dirs = Split(Environment("LOSSGAUGE_RING_DIR"));
  if (flags.ring_dirs.empty()) flags.ring_dirs.push_back(absl::StrCat("/dev/shm/lossgauge-", geteuid()));
  std::sort(flags.ring_dirs.begin(), flags.ring_dirs.end());
  flags.ring_dirs.erase(std::unique(flags.ring_dirs.begin(), flags.ring_dirs.end()), flags.ring_dirs.end());

  flags.state_dir = absl::GetFlag(FLAGS_state_dir);
  if (flags.state_dir.empty()) flags.state_dir = DefaultStateDir() + (is_daemon ? "-daemon" : "");
  if (flags.state_dir == "none") flags.state_dir.clear();
  flags.http_listen = absl::GetFlag(FLAGS_http_listen);
  flags.http_allowed_hosts = Split(absl::GetFlag(FLAGS_http_allowed_hosts));
  flags.grpc_listen = absl::GetFlag(FLAGS_grpc_listen);
  flags.log_format = ChoiceFlag("log_format", absl::GetFlag(FLAGS_log_format), {"text", "json"});
  flags.log_level = ChoiceFlag("log_level", absl::GetFlag(FLAGS_log_level), {"debug", "info", "warning", "error"});
  flags.policy = absl::GetFlag(FLAGS_policy);
  flags.mode = ChoiceFlag("mode", absl::GetFlag(FLAGS_mode), {"advise", "shadow"});
  flags.join_timeout_ns = DurationFlag("join_timeout", absl::GetFlag(FLAGS_join_timeout), absl::Milliseconds(10), absl::Minutes(10));
  flags.linger_ns = DurationFlag("linger", absl::GetFlag(FLAGS_linger), absl::ZeroDuration(), absl::Hours(24 * 7));
  flags.lost_linger_ns = DurationFlag("lost_linger", absl::GetFlag(FLAGS_lost_linger), absl::ZeroDuration(), absl::Hours(24 * 7));
  flags.frozen_after_ns = DurationFlag("frozen_after", absl::GetFlag(FLAGS_frozen_after), absl::Seconds(2), absl::Minutes(10));
  flags.stuck_after_ns = DurationFlag("stuck_after", absl::GetFlag(FLAGS_stuck_after), absl::Seconds(1), absl::Minutes(10));
  flags.max_runs = static_cast<std::size_t>(NumberFlag("max_runs", absl::GetFlag(FLAGS_max_runs), 1, 4096));
  flags.max_runs_per_sender = static_cast<std::size_t>(NumberFlag("max_runs_per_sender", absl::GetFlag(FLAGS_max_runs_per_sender), 0, 4096));
  flags.max_runs_per_client = static_cast<std::size_t>(NumberFlag("max_runs_per_client", absl::GetFlag(FLAGS_max_runs_per_client), 0, 4096));
  if (flags.max_runs_per_client == 0) flags.max_runs_per_client = flags.max_runs * 3 / 4;
  if (flags.max_runs_per_client >= flags.max_runs) flags.max_runs_per_client = 0;  // none of its own: what --max_runs refuses is counted as that
  flags.max_ranks = static_cast<std::size_t>(NumberFlag("max_ranks", absl::GetFlag(FLAGS_max_ranks), 0, 65'536));
  if (flags.max_ranks == 0) flags.max_ranks = is_daemon ? 32'768 : 1024;
  flags.max_rank_series = static_cast<std::size_t>(NumberFlag("max_rank_series", absl::GetFlag(FLAGS_max_rank_series), 0, 16'384));
  flags.forward_to = Split(absl::GetFlag(FLAGS_forward_to));
  if (flags.forward_to.size() > 2) UsageError("--forward_to names more than two daemons");
  if (is_daemon && !flags.forward_to.empty()) UsageError("--forward_to is for a sidecar: a daemon forwards nothing");
  if (is_daemon && flags.grpc_listen == "none") UsageError("--grpc_listen=none: a daemon receives records there");
  flags.leave_runs_to_daemon = ChoiceFlag("run_series", absl::GetFlag(FLAGS_run_series), {"auto", "all"}) == "auto" && !flags.forward_to.empty();
  flags.forward_spool_bytes =
      static_cast<std::uint64_t>(NumberFlag("forward_spool_mebibytes", absl::GetFlag(FLAGS_forward_spool_mebibytes), 2, 1 << 20)) << 20;
  flags.max_steps = static_cast<std::size_t>(NumberFlag("max_steps", absl::GetFlag(FLAGS_max_steps), 64, 100'000));
  flags.reclaim = absl::GetFlag(FLAGS_reclaim);
  flags.exit_after_end = absl::GetFlag(FLAGS_exit_after_end);
  flags.history_bytes = static_cast<std::uint64_t>(NumberFlag("history_mebibytes", absl::GetFlag(FLAGS_history_mebibytes), 16, 1 << 20)) << 20;
  flags.journal_bytes = static_cast<std::uint64_t>(NumberFlag("journal_mebibytes", absl::GetFlag(FLAGS_journal_mebibytes), 0, 65'536)) << 20;
  flags.history_full_ns = DurationFlag("history_full", absl::GetFlag(FLAGS_history_full), absl::Minutes(1), absl::Hours(24 * 365));
  flags.history_age_ns = DurationFlag("history_age", absl::GetFlag(FLAGS_history_age), absl::Minutes(1), absl::Hours(24 * 365));
  absl::StatusOr<ServiceFlags> service = GetServiceFlags();
  if (!service.ok()) UsageError(std::string(service.status().message()));
  flags.service = *std::move(service);
  absl::StatusOr<SinkFlags> sinks = GetSinkFlags();
  if (!sinks.ok()) UsageError(std::string(sinks.status().message()));
  flags.sinks = *std::move(sinks);
  return flags;
}

}  // namespace lossgauge::main
