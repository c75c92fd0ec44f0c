#include "client/cpp/examples/train_text/flags.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <variant>

#include "client/cpp/examples/train_text/all_reduce.h"
#include "client/cpp/examples/train_text/faults.h"
#include "client/cpp/examples/train_text/text_corpus.h"

namespace lossgauge::train_text {
namespace {

constexpr double kMany = 1e9;

struct Flag {
  const char* name;
  std::variant<std::string*, std::int64_t*, double*, bool*> value;
  const char* unit;
  const char* help;
  double min = 0, max = kMany;
  std::vector<std::string> choices = {};  // of a string
};

std::vector<Flag> FlagTable(Options* o) {
  return {
      {"text", &o->text, "path", "file, or directory of files, to train on"},
      {"vocab_size", &o->vocab_size, "tokens", "257 = bytes and an end token; above, learnt byte pairs", kMinVocabSize, kMaxVocabSize},
      {"context", &o->context, "tokens", "previous tokens that the model sees", 1, 256},
      {"embedding", &o->embedding, "floats", "width of a token's embedding", 1, 4096},
      {"hidden", &o->hidden, "units", "width of the hidden layer", 1, 16384},
      {"activation", &o->activation, "name", "of the hidden layer: gelu or tanh", 0, 0, {"gelu", "tanh"}},
      {"seed", &o->seed, "number", "of initial weights and batches"},
      {"steps", &o->steps, "steps", "train steps 0 to this one, excluded", 1, kMany},
      {"batch", &o->batch, "sequences", "per step, over all ranks and micro-batches", 1, 1 << 20},
      {"length", &o->length, "positions", "of a sequence", 1, 1 << 16},
      {"micro_batches", &o->micro_batches, "count", "gradient accumulation within a rank", 1, 1 << 16},
      {"ranks", &o->ranks, "processes", "data-parallel ranks", 1, kMaxRanks},
      {"threads", &o->threads, "threads", "per rank", 1, 256},
      {"linear_head", &o->linear_head, "", "head and loss in one call that never holds all logits (lg_linear_cross_entropy): the same losses"},
      {"step_ms", &o->step_ms, "ms", "a step takes at least this long", 0, 3.6e6},
      {"barrier_timeout_s", &o->barrier_timeout_s, "s", "how long to wait for a rank that does not come", 1, 86400},
      {"learning_rate", &o->learning_rate, "1", "peak, of AdamW", 0, 1e3},
      {"warm_up_steps", &o->warm_up_steps, "steps", "of the learning rate", 0, kMany},
      {"decay_steps", &o->decay_steps, "steps", "so long after the warm-up the learning rate is its peak / sqrt(2)", 1, kMany},
      {"weight_decay", &o->weight_decay, "1", "decoupled, times the learning rate", 0, 1e3},
      {"clip_norm", &o->clip_norm, "1", "largest gradient norm; 0 = no clipping", 0, kMany},
      {"label_smoothing", &o->label_smoothing, "1", "in [0, 1)", 0, 0.999999},
      {"z_loss", &o->z_loss, "1", "weight of (log Z)^2", 0, 1e3},
      {"gradient_reduction", &o->gradient_reduction, "name", "over ranks: mean (as DDP does) or sum", 0, 0, {"mean", "sum"}},
      {"run", &o->run, "name", "stable name of the run, the same after a restart"},
      {"attempt", &o->attempt, "name", "of this start; empty = made from the time"},
      {"ring_dir", &o->ring_dir, "path", "where the rings are; empty = LOSSGAUGE_RING_DIR or /dev/shm/lossgauge-<uid>"},
      {"no_telemetry", &o->no_telemetry, "", "train without a gauge"},
      {"eval_every", &o->eval_every, "steps", "evaluate on held-out text; 0 = never", 0, kMany},
      {"eval_sequences", &o->eval_sequences, "sequences", "held-out windows of an evaluation", 1, 1 << 20},
      {"checkpoint_dir", &o->checkpoint_dir, "path", "where checkpoints go; must exist"},
      {"checkpoint_every", &o->checkpoint_every, "steps", "save after every so many steps; 0 = never", 0, kMany},
      {"resume", &o->resume, "path", "a checkpoint to go on from, or \"latest\" of --checkpoint_dir (a fresh start if it has none)"},
      {"log_every", &o->log_every, "steps", "print a line; 0 = never", 0, kMany},
      {"log_file", &o->log_file, "path", "one line per step, tab separated: what the job itself saw"},
      {"print_loss_bits", &o->print_loss_bits, "", "at the end, print a hash of every loss and of the weights"},
      {"fault", &o->fault, "name", "what goes wrong: see below", 0, 0, FaultNames()},
      {"fault_step", &o->fault_step, "step", "when it begins", 0, kMany},
      {"fault_steps", &o->fault_steps, "steps", "how long it lasts; 0 = as the fault has it", 0, kMany},
      {"fault_rank", &o->fault_rank, "rank", "whom it hits (stop_rank, kill, freeze, nan_once, bad_shard, slow_rank, mute); -1 = the last", -1, kMaxRanks - 1},
      {"fault_seconds", &o->fault_seconds, "s", "length of eval_pause", 0, 86400},
      {"then_fault", &o->then_fault, "name", "a second fault", 0, 0, FaultNames()},
      {"then_fault_step", &o->then_fault_step, "step", "when the second begins", 0, kMany},
  };
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", value);
  return text;
}

// Sets one flag; "" or what is wrong with the value.
std::string Set(const Flag& flag, const std::string& value) {
  if (std::string* const* text = std::get_if<std::string*>(&flag.value)) {
    if (!flag.choices.empty()) {
      bool known = false;
      std::string all;
      for (const std::string& choice : flag.choices) {
        known |= choice == value;
        all += (all.empty() ? "" : ", ") + choice;
      }
      if (!known) return "takes one of " + all;
    }
    **text = value;
    return "";
  }
  if (bool* const* boolean = std::get_if<bool*>(&flag.value)) {
    if (value != "true" && value != "false") return "takes true or false";
    **boolean = value == "true";
    return "";
  }
  const std::string range = " from " + Number(flag.min) + " to " + Number(flag.max);
  const char* end = value.data() + value.size();
  if (std::int64_t* const* integer = std::get_if<std::int64_t*>(&flag.value)) {
    std::int64_t number = 0;
    const auto parsed = std::from_chars(value.data(), end, number);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
    if (!whole || static_cast<double>(number) < flag.min || static_cast<double>(number) > flag.max) return "takes a whole number" + range;
    **integer = number;
    return "";
  }
  double number = 0;
  const auto parsed = std::from_chars(value.data(), end, number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
  // Written so that NaN fails it.
  if (!whole || !(number >= flag.min && number <= flag.max)) return "takes a number" + range;
  *std::get<double*>(flag.value) = number;
  return "";
}

std::string DefaultOf(const Flag& flag) {
  if (std::string* const* text = std::get_if<std::string*>(&flag.value)) return **text;
  if (bool* const* boolean = std::get_if<bool*>(&flag.value)) return **boolean ? "true" : "false";
  if (std::int64_t* const* integer = std::get_if<std::int64_t*>(&flag.value)) return std::to_string(**integer);
  return Number(*std::get<double*>(flag.value));
}

// What no single flag can see.
std::string CheckTogether(const Options& o) {
  if (o.batch % (o.ranks * o.micro_batches) != 0) {
    return "--batch=" + std::to_string(o.batch) + " must be divisible by --ranks * --micro_batches = " + std::to_string(o.ranks * o.micro_batches);
  }
  if (o.checkpoint_every > 0 && o.checkpoint_dir.empty()) return "--checkpoint_every needs --checkpoint_dir";
  if (o.resume == "latest" && o.checkpoint_dir.empty()) return "--resume=latest needs --checkpoint_dir";
  if (o.fault_rank >= o.ranks) return "--fault_rank=" + std::to_string(o.fault_rank) + " but there are only --ranks=" + std::to_string(o.ranks);
  if ((o.fault == "mean_of_means" || o.then_fault == "mean_of_means") && o.ranks * o.micro_batches == 1) {
    return "fault mean_of_means needs --ranks or --micro_batches above 1: one count is its own mean";
  }
  if ((o.fault == "local_report" || o.then_fault == "local_report") && o.ranks == 1) return "fault local_report needs --ranks above 1";
  const auto has = [&](const char* fault) { return o.fault == fault || o.then_fault == fault; };
  if (has("z_loss_sign") && (!(o.z_loss > 0) || o.linear_head || has("mean_of_means"))) {
    return "fault z_loss_sign needs --z_loss above 0, logits (no --linear_head) and one denominator (no mean_of_means)";
  }
  return "";
}

}  // namespace

ParseResult ParseFlags(const std::vector<std::string>& arguments, Options* options, std::string* error) {
  const std::vector<Flag> table = FlagTable(options);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") return ParseResult::kHelp;
    const std::size_t equals = argument.find('=');
    const std::string name = argument.rfind("--", 0) == 0 ? argument.substr(2, equals == std::string::npos ? equals : equals - 2) : "";
    const Flag* flag = nullptr;
    for (const Flag& candidate : table) {
      if (name == candidate.name) flag = &candidate;
    }
    if (flag == nullptr) {
      *error = "unknown argument \"" + argument + "\"; --help lists the flags";
      return ParseResult::kError;
    }
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (std::holds_alternative<bool*>(flag->value)) {
      value = "true";
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      *error = "--" + name + " needs a value (" + flag->unit + ")";
      return ParseResult::kError;
    }
    if (const std::string problem = Set(*flag, value); !problem.empty()) {
      *error = "--" + name + " " + problem + ", got \"" + value + "\"";
      return ParseResult::kError;
    }
  }
  *error = CheckTogether(*options);
  return error->empty() ? ParseResult::kRun : ParseResult::kError;
}

std::string HelpText() {
  Options defaults;
  std::string text =
      "train_text: trains a small language model on real text and lets lossgauge see it.\n\n"
      "Flags (default, unit):\n";
  for (const Flag& flag : FlagTable(&defaults)) {
    std::string left = "  --" + std::string(flag.name) + "=" + DefaultOf(flag);
    if (*flag.unit != '\0') left += "  [" + std::string(flag.unit) + "]";
    left.resize(std::max<std::size_t>(left.size() + 2, 52), ' ');
    text += left + flag.help + "\n";
  }
  text += "\nFaults (each a real mechanism, from --fault_step on):\n" + FaultHelp();
  return text;
}

}  // namespace lossgauge::train_text
