#include "client/cpp/examples/pipeline_8b/options.h"

#include <charconv>
#include <variant>

#include "client/cpp/examples/pipeline_8b/faults.h"

namespace lossgauge::pipeline_8b {
namespace {

struct Flag {
  const char* name;
  std::variant<std::int64_t*, double*, bool*, std::string*> value;
  const char* help;
  double min = 0, max = 1e12;
};

std::vector<Flag> FlagTable(Options* o) {
  return {
      {"ranks", &o->ranks, "tensor-parallel ranks, a process each", 1, 64},
      {"cuda", &o->cuda, "on GPUs, one a rank, over NCCL; default: the CPU backend over shared memory"},
      {"share_gpus", &o->share_gpus, "with --cuda: more ranks than GPUs, which exchange through host memory; for results and memory, not for times"},
      {"width", &o->width, "of hidden states; 0 = 4096, on CPUs 64", 0, 1 << 20},
      {"length", &o->length, "tokens of a sequence; 0 = 8192, on CPUs 256", 0, 1 << 24},
      {"sequences", &o->sequences, "of a step; 0 = 8, on CPUs 4", 0, 1 << 20},
      {"vocab_size", &o->vocab_size, "tokens; 0 = 128256, on CPUs 2048", 0, 1 << 30},
      {"chunk_rows", &o->chunk_rows, "rows whose logits a rank holds at once; 0 = 2048, on CPUs 128", 0, 1 << 30},
      {"z_loss", &o->z_loss, "weight of (log Z)^2", 0, 1},
      {"steps", &o->steps, "how many", 1, 1e9},
      {"step_ms", &o->step_ms, "a step takes at least so many ms", 0, 3.6e6},
      {"threads", &o->threads, "of a rank on CPUs", 1, 256},
      {"seed", &o->seed, "of documents, hidden states and head"},
      {"check", &o->check, "loss and gradients of the last step against the whole head on one device"},
      {"run", &o->run, "stable name of the run"},
      {"attempt", &o->attempt, "of this start; empty = made from the time"},
      {"ring_dir", &o->ring_dir, "where the rings are; empty = LOSSGAUGE_RING_DIR or /dev/shm/lossgauge-<uid>"},
      {"no_telemetry", &o->no_telemetry, "without a gauge: what the signals cost"},
      {"timeout_s", &o->timeout_s, "s to wait for a rank that does not come, on CPUs", 0.1, 86400},
      {"fault", &o->fault, "what goes wrong, in builds for tests"},
      {"fault_step", &o->fault_step, "from which step on"},
      {"fault_rank", &o->fault_rank, "whose fault it is", 0, 63},
  };
}

std::string Set(const Flag& flag, const std::string& value) {
  if (std::string* const* text = std::get_if<std::string*>(&flag.value)) {
    **text = value;
    return "";
  }
  if (bool* const* boolean = std::get_if<bool*>(&flag.value)) {
    if (value != "true" && value != "false") return "takes true or false";
    **boolean = value == "true";
    return "";
  }
  const char* const end = value.data() + value.size();
  double number = 0;
  std::int64_t whole = 0;
  bool good;
  if (std::int64_t* const* integer = std::get_if<std::int64_t*>(&flag.value)) {
    const auto parsed = std::from_chars(value.data(), end, whole);
    good = parsed.ec == std::errc() && parsed.ptr == end;
    number = static_cast<double>(whole);
    if (good && number >= flag.min && number <= flag.max) **integer = whole;
  } else {
    const auto parsed = std::from_chars(value.data(), end, number);
    good = parsed.ec == std::errc() && parsed.ptr == end;
    if (good && number >= flag.min && number <= flag.max) *std::get<double*>(flag.value) = number;
  }
  if (good && number >= flag.min && number <= flag.max) return "";
  return "takes a number from " + std::to_string(flag.min) + " to " + std::to_string(flag.max);
}

std::string CheckTogether(Options* o) {
  const auto otherwise = [o](std::int64_t* value, std::int64_t on_gpus, std::int64_t on_cpus) {
    if (*value == 0) *value = o->cuda ? on_gpus : on_cpus;
  };
  otherwise(&o->width, 4096, 64);
  otherwise(&o->length, 8192, 256);
  otherwise(&o->sequences, 8, 4);
  otherwise(&o->vocab_size, 128256, 2048);
  otherwise(&o->chunk_rows, 2048, 128);
  if (o->vocab_size < o->ranks) return "--vocab_size must be at least --ranks";
  if (o->length < 64) return "--length must be at least 64";
  if (o->share_gpus && !o->cuda) return "--share_gpus needs --cuda";
  if (o->fault_rank >= o->ranks && o->fault != "none") return "--fault_rank must be below --ranks";
  return CheckFault(o->fault, static_cast<int>(o->ranks));
}

}  // namespace

ParseResult ParseFlags(const std::vector<std::string>& arguments, Options* options, std::string* error) {
  const std::vector<Flag> table = FlagTable(options);
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return ParseResult::kHelp;
    const std::size_t equals = argument.find('=');
    const Flag* flag = nullptr;
    for (const Flag& candidate : table) {
      if (argument.substr(0, equals) == std::string("--") + candidate.name) flag = &candidate;
    }
    std::string problem = "is not known; --help lists the flags";
    if (flag != nullptr && equals == std::string::npos) {
      problem = std::holds_alternative<bool*>(flag->value) ? Set(*flag, "true") : "needs a value: --name=value";
    } else if (flag != nullptr) {
      problem = Set(*flag, argument.substr(equals + 1));
    }
    if (!problem.empty()) {
      *error = argument + " " + problem;
      return ParseResult::kError;
    }
  }
  *error = CheckTogether(options);
  return error->empty() ? ParseResult::kRun : ParseResult::kError;
}

std::string HelpText() {
  Options defaults;
  std::string text =
      "pipeline_8b: the loss head of an 8B model as tensor-parallel training has it: hidden states on every rank, the head's rows cut among them, chunk by "
      "chunk.\n\n"
      "Flags:\n";
  for (const Flag& flag : FlagTable(&defaults)) {
    std::string left = std::string("  --") + flag.name;
    left.resize(18, ' ');
    text += left + flag.help + "\n";
  }
  return text + FaultHelp();
}

}  // namespace lossgauge::pipeline_8b
