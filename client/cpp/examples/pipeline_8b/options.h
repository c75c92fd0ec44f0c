// The flags of pipeline_8b.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_OPTIONS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lossgauge::pipeline_8b {

struct Options {
  std::int64_t ranks = 1;
  bool cuda = false;        // GPUs and NCCL, one GPU a rank; else the CPU backend, one process a rank
  bool share_gpus = false;  // with cuda: ranks take turns among the GPUs there are, and exchange through host memory
  // The step: `sequences` of `length` tokens. Defaults: the step of an 8B model on GPUs, a thousandth of its work on CPUs.
  std::int64_t width = 0, length = 0, sequences = 0, vocab_size = 0, chunk_rows = 0;
  double z_loss = 1e-4;
  std::int64_t steps = 3, step_ms = 0, threads = 1, seed = 1;
  bool check = true;  // against the whole head on one device
  std::string run = "pipeline_8b", attempt, ring_dir;
  bool no_telemetry = false;
  double timeout_s = 60;
  std::string fault = "none";
  std::int64_t fault_step = 0, fault_rank = 1;

  std::int64_t tokens() const { return length * sequences; }
};

enum class ParseResult { kRun, kHelp, kError };
ParseResult ParseFlags(const std::vector<std::string>& arguments, Options* options, std::string* error);
std::string HelpText();

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_OPTIONS_H_
