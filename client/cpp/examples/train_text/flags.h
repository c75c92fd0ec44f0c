// The command line. Every flag stands in one table (flags.cc) with its default, unit, range and meaning; --help prints the table.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_FLAGS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lossgauge::train_text {

struct Options {
  // Text and model.
  std::string text = "/usr/share/common-licenses";
  std::int64_t vocab_size = 257;
  std::int64_t context = 8;
  std::int64_t embedding = 16;
  std::int64_t hidden = 64;
  std::string activation = "gelu";
  std::int64_t seed = 1;
  // Steps.
  std::int64_t steps = 2000;
  std::int64_t batch = 256;
  std::int64_t length = 16;
  std::int64_t micro_batches = 1;
  std::int64_t ranks = 1;
  std::int64_t threads = 1;
  bool linear_head = false;
  std::int64_t step_ms = 0;
  std::int64_t barrier_timeout_s = 60;
  // Objective and optimiser.
  double learning_rate = 0.006;
  std::int64_t warm_up_steps = 100;
  std::int64_t decay_steps = 400;
  double weight_decay = 0.01;
  double clip_norm = 1.0;
  double label_smoothing = 0;
  double z_loss = 1e-4;
  std::string gradient_reduction = "mean";
  // Telemetry.
  std::string run = "train_text";
  std::string attempt;
  std::string ring_dir;
  bool no_telemetry = false;
  // Evaluation, checkpoints, output.
  std::int64_t eval_every = 0;
  std::int64_t eval_sequences = 256;
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 0;
  std::string resume;
  std::int64_t log_every = 100;
  std::string log_file;
  bool print_loss_bits = false;
  // Faults.
  std::string fault = "none";
  std::int64_t fault_step = 400;
  std::int64_t fault_steps = 0;
  std::int64_t fault_rank = -1;
  std::int64_t fault_seconds = 20;
  std::string then_fault = "none";
  std::int64_t then_fault_step = 1000;
};

enum class ParseResult { kRun, kHelp, kError };

// Fills `options` from "--name=value" or "--name value" (a boolean flag also "--name" alone). On kError, `error` names the flag, what it takes and what
// it got.
ParseResult ParseFlags(const std::vector<std::string>& arguments, Options* options, std::string* error);
std::string HelpText();

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_FLAGS_H_
