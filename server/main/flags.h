// The command line of lossgauged: every flag with default, unit and reason. Errors name the flag and end with exit code 2.
#ifndef LOSSGAUGE_SERVER_MAIN_FLAGS_H_
#define LOSSGAUGE_SERVER_MAIN_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/main/service_flags.h"
#include "server/main/sink_flags.h"

namespace lossgauge::main {

enum class Role { kSidecar, kDaemon };

struct Flags {
  Role role = Role::kSidecar;
  std::vector<std::string> ring_dirs;
  std::string state_dir;  // "" = nothing survives a restart
  std::string http_listen;
  std::vector<std::string> http_allowed_hosts;
  std::string grpc_listen;
  std::string log_format;
  std::string log_level;
  std::string policy;
  std::string mode;
  std::int64_t join_timeout_ns = 0;
  std::int64_t linger_ns = 0;
  std::int64_t lost_linger_ns = 0;
  std::int64_t frozen_after_ns = 0;
  std::int64_t stuck_after_ns = 0;
  std::size_t max_runs = 0;
  std::size_t max_runs_per_sender = 0;  // daemon; 0: no limit
  std::size_t max_runs_per_client = 0;  // daemon
  std::size_t max_ranks = 0;
  std::size_t max_steps = 0;
  std::size_t max_rank_series = 0;
  std::vector<std::string> forward_to;  // sidecar
  bool leave_runs_to_daemon = false;  // on /metrics
  std::uint64_t forward_spool_bytes = 0;
  bool reclaim = false;
  bool exit_after_end = false;
  std::uint64_t history_bytes = 0;
  std::uint64_t journal_bytes = 0;  // 0: off
  std::int64_t history_full_ns = 0;
  std::int64_t history_age_ns = 0;
  ServiceFlags service;
  SinkFlags sinks;
};

// Does not return on --help, --version (exit code 0) or an error (a sentence on stderr, exit code 2).
Flags ParseFlags(int argc, char** argv);

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_FLAGS_H_
