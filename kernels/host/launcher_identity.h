// Which run, attempt and rank this process is: from the options, else from the launcher's environment.
#ifndef LOSSGAUGE_KERNELS_HOST_LAUNCHER_IDENTITY_H_
#define LOSSGAUGE_KERNELS_HOST_LAUNCHER_IDENTITY_H_

#include <cstdint>
#include <string>

#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge {

// getenv, or a test's stand-in for it.
using Environment = const char* (*)(const char* name);

struct LauncherIdentity {
  std::string run;
  std::string attempt;
  std::int64_t attempt_start_wall_ns = 0;
  lg_layout layout{};
};

// Fills `identity` from options that were checked for size already. Sources, in this order:
//   run          options, LOSSGAUGE_RUN
//   world_size   options, WORLD_SIZE, SLURM_NTASKS, 1
//   rank         options, RANK, SLURM_PROCID, 0 if the world has one rank
//   attempt      options, LOSSGAUGE_ATTEMPT, TORCHELASTIC_RUN_ID + TORCHELASTIC_RESTART_COUNT, SLURM_JOB_ID +
//   SLURM_RESTART_COUNT (+ TORCHELASTIC_RESTART_COUNT),
//                the start time if the world has one rank
// LG_INVALID_ARGUMENT for an option that cannot be right; LG_FAILED_PRECONDITION where the environment lacks what is needed or
// contradicts itself. The message names the option or variable. May throw std::bad_alloc.
int ResolveIdentity(const lg_gauge_options& options, Environment environment, std::int64_t now_wall_ns,
                    LauncherIdentity* identity);

// Nanoseconds since 1970 as 2026-01-31T23:59:59.123456789Z.
std::string FormatUtc(std::int64_t wall_ns);

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_LAUNCHER_IDENTITY_H_
