#include "kernels/host/launcher_identity.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "kernels/host/error.h"
#include "kernels/host/segment_name.h"

namespace lossgauge {
namespace {

const char* NonEmpty(const char* text) { return text != nullptr && *text != '\0' ? text : nullptr; }

// A whole decimal number in [low, 2^31). False: absent. LG_FAILED_PRECONDITION goes through *code.
bool ReadNumber(Environment environment, const char* name, std::int32_t low, std::int32_t* value, int* code) {
  const char* text = NonEmpty(environment(name));
  if (text == nullptr || *code != LG_OK) return false;
  errno = 0;
  char* end = nullptr;
  const long long number = std::strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || number < low || number > std::numeric_limits<std::int32_t>::max()) {
    *code = SetError(LG_FAILED_PRECONDITION, "environment variable %s: expected a whole number >= %d, got \"%.64s\"", name, low,
                     text);
    return false;
  }
  *value = static_cast<std::int32_t>(number);
  return true;
}

// A name may be longer than its field: the hash of the whole keeps two names with one beginning apart.
std::string Fit(const std::string& name, std::size_t field_bytes) {
  if (name.size() < field_bytes) return name;
  constexpr std::size_t kHashBytes = 17;  // '-' and 16 digits
  return name.substr(0, field_bytes - 1 - kHashBytes) + "-" + HexOf(HashText(name));
}
std::string FitAttempt(const std::string& attempt) { return Fit(attempt, LG_ATTEMPT_BYTES); }

int ResolveRank(const lg_gauge_options& options, Environment environment, lg_layout* layout) {
  int code = LG_OK;
  std::int32_t world_size = options.world_size;
  if (world_size == 0 && !ReadNumber(environment, "WORLD_SIZE", 1, &world_size, &code) &&
      !ReadNumber(environment, "SLURM_NTASKS", 1, &world_size, &code)) {
    world_size = 1;
  }
  std::int32_t rank = options.rank;
  if (rank == -1 && !ReadNumber(environment, "RANK", 0, &rank, &code) &&
      !ReadNumber(environment, "SLURM_PROCID", 0, &rank, &code)) {
    if (code == LG_OK && world_size > 1) {
      return SetError(LG_FAILED_PRECONDITION,
                      "rank: world size is %d, but neither the option `rank` nor RANK nor SLURM_PROCID says which rank this is",
                      world_size);
    }
    rank = 0;
  }
  if (code != LG_OK) return code;
  if (rank >= world_size) {
    const bool given = options.rank >= 0 && options.world_size > 0;
    return SetError(given ? LG_INVALID_ARGUMENT : LG_FAILED_PRECONDITION, "rank: must be below the world size %d (%s), got %d",
                    world_size, options.world_size > 0 ? "option world_size" : "WORLD_SIZE, SLURM_NTASKS or the default 1",
                    rank);
  }
  layout->world_size = static_cast<std::uint32_t>(world_size);
  layout->rank = static_cast<std::uint32_t>(rank);
  return LG_OK;
}

int ResolveAttempt(const lg_gauge_options& options, Environment environment, std::int64_t now_wall_ns, std::uint32_t world_size,
                   std::string* attempt) {
  if (NonEmpty(options.attempt) != nullptr) {
    *attempt = FitAttempt(options.attempt);  // as a run's name: a job does not stop over it
    return LG_OK;
  }
  const auto with_count = [environment](const char* id, const char* count_name) {
    const char* count = NonEmpty(environment(count_name));
    return FitAttempt(std::string(id) + "-" + (count != nullptr ? count : "0"));
  };
  if (const char* given = NonEmpty(environment("LOSSGAUGE_ATTEMPT"))) {
    *attempt = FitAttempt(given);
  } else if (const char* elastic = NonEmpty(environment("TORCHELASTIC_RUN_ID"));
             elastic != nullptr && std::strcmp(elastic, "none") != 0) {
    // "none" is torchrun's default, the same for every launch: it identifies nothing.
    *attempt = with_count(elastic, "TORCHELASTIC_RESTART_COUNT");
  } else if (const char* slurm = NonEmpty(environment("SLURM_JOB_ID"))) {
    // torchrun inside a Slurm job restarts its workers without Slurm's knowledge.
    const char* elastic_count = NonEmpty(environment("TORCHELASTIC_RESTART_COUNT"));
    *attempt = with_count(slurm, "SLURM_RESTART_COUNT");
    if (elastic_count != nullptr) *attempt = FitAttempt(*attempt + "-" + elastic_count);
  } else if (world_size == 1) {
    *attempt = FormatUtc(now_wall_ns);
  } else {
    return SetError(
        LG_FAILED_PRECONDITION,
        "attempt: world size is %u, and neither the option `attempt` nor LOSSGAUGE_ATTEMPT, TORCHELASTIC_RUN_ID (other than "
        "\"none\") or SLURM_JOB_ID says which start of the job this is. Broadcast a string from rank 0 and pass it as "
        "`attempt`",
        world_size);
  }
  return LG_OK;
}

int CheckAxis(const char* name, const lg_axis_option& option, lg_axis* axis) {
  if (option.size < 1) return SetError(LG_INVALID_ARGUMENT, "%s.size: must be >= 1, got %d", name, option.size);
  if (option.index < 0 || option.index >= option.size) {
    return SetError(LG_INVALID_ARGUMENT, "%s.index: must be in [0, %d), got %d", name, option.size, option.index);
  }
  axis->size = static_cast<std::uint32_t>(option.size);
  axis->index = static_cast<std::uint32_t>(option.index);
  return LG_OK;
}

int ResolveAxes(const lg_gauge_options& options, lg_layout* layout) {
  int code = CheckAxis("tp", options.tp, &layout->tp);
  if (code == LG_OK) code = CheckAxis("pp", options.pp, &layout->pp);
  if (code == LG_OK) code = CheckAxis("cp", options.cp, &layout->cp);
  if (code == LG_OK) code = CheckAxis("ep", options.ep, &layout->ep);
  if (code != LG_OK) return code;
  const std::int64_t world_size = layout->world_size;
  const std::int64_t others = std::int64_t{options.tp.size} * options.pp.size % (world_size + 1) * options.cp.size;
  lg_axis_option dp = options.dp;
  if (dp.size == 0) {
    if (others < 1 || others > world_size || world_size % others != 0) {
      return SetError(LG_INVALID_ARGUMENT, "tp.size * pp.size * cp.size: must divide the world size %lld, got %d * %d * %d",
                      static_cast<long long>(world_size), options.tp.size, options.pp.size, options.cp.size);
    }
    dp.size = static_cast<std::int32_t>(world_size / others);
    if (others == 1) dp.index = static_cast<std::int32_t>(layout->rank);
  } else if (dp.size > 0 && dp.size * others != world_size) {
    return SetError(LG_INVALID_ARGUMENT,
                    "dp.size * tp.size * pp.size * cp.size: must be the world size %lld, got %d * %d * %d * %d",
                    static_cast<long long>(world_size), dp.size, options.tp.size, options.pp.size, options.cp.size);
  }
  return CheckAxis("dp", dp, &layout->dp);
}

int ResolveShard(const lg_gauge_options& options, lg_layout* layout) {
  if (options.vocab_size < 0) {
    return SetError(LG_INVALID_ARGUMENT, "vocab_size: must be >= 0, got %lld", static_cast<long long>(options.vocab_size));
  }
  if (options.shard_offset < 0 || options.shard_offset > options.vocab_size) {
    return SetError(LG_INVALID_ARGUMENT, "shard_offset: must be in [0, vocab_size = %lld], got %lld",
                    static_cast<long long>(options.vocab_size), static_cast<long long>(options.shard_offset));
  }
  const std::int64_t left = options.vocab_size - options.shard_offset;
  if (options.shard_columns < 0 || options.shard_columns > left) {
    return SetError(LG_INVALID_ARGUMENT, "shard_columns: must be in [0, vocab_size - shard_offset = %lld], got %lld",
                    static_cast<long long>(left), static_cast<long long>(options.shard_columns));
  }
  layout->vocab_size = options.vocab_size;
  layout->shard_offset = options.shard_offset;
  layout->shard_columns = options.shard_columns != 0 ? options.shard_columns : left;
  return LG_OK;
}

}  // namespace

std::string FormatUtc(std::int64_t wall_ns) {
  const time_t seconds = static_cast<time_t>(wall_ns / 1000000000);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  const std::size_t length = ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%09lldZ", static_cast<long long>(wall_ns % 1000000000));
  return text;
}

int ResolveIdentity(const lg_gauge_options& options, Environment environment, std::int64_t now_wall_ns,
                    LauncherIdentity* identity) {
  const char* run = options.run != nullptr ? options.run : NonEmpty(environment("LOSSGAUGE_RUN"));
  if (run == nullptr) return SetError(LG_INVALID_ARGUMENT, "run: no name given, and LOSSGAUGE_RUN is not set");
  if (*run == '\0') return SetError(LG_INVALID_ARGUMENT, "run: expected a name, got an empty one");
  identity->run = Fit(run, LG_RUN_NAME_BYTES);  // a job does not stop over a long name
  if (options.world_size < 0) return SetError(LG_INVALID_ARGUMENT, "world_size: must be >= 0, got %d", options.world_size);
  if (options.rank < -1) return SetError(LG_INVALID_ARGUMENT, "rank: must be >= -1, got %d", options.rank);
  if (options.gradient_reduction < LG_REDUCTION_OVER_RANKS_UNKNOWN ||
      options.gradient_reduction > LG_REDUCTION_OVER_RANKS_MEAN) {
    return SetError(LG_INVALID_ARGUMENT, "gradient_reduction: must be an lg_gradient_reduction (0 to 2), got %d",
                    options.gradient_reduction);
  }
  lg_layout* layout = &identity->layout;
  layout->has_loss = options.has_loss != 0 ? 1 : 0;
  layout->gradient_reduction = static_cast<std::uint32_t>(options.gradient_reduction);
  identity->attempt_start_wall_ns = options.attempt_start_wall_ns != 0 ? options.attempt_start_wall_ns : now_wall_ns;
  int code = ResolveShard(options, layout);
  if (code == LG_OK) code = ResolveRank(options, environment, layout);
  if (code == LG_OK) code = ResolveAxes(options, layout);
  if (code == LG_OK) code = ResolveAttempt(options, environment, now_wall_ns, layout->world_size, &identity->attempt);
  return code;
}

}  // namespace lossgauge
