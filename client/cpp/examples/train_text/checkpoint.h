// Everything that a job needs to go on with the same bits: parameters, optimiser moments, and how far it came. (Data need no state: batches
// are a function of the step.) Files are written beside their final name, synced and renamed, so a name always stands for a whole file.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_CHECKPOINT_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cpp/examples/train_text/model.h"

namespace lossgauge::train_text {

struct Checkpoint {
  ModelShape shape;
  std::uint64_t seed = 0;
  std::int64_t step = -1;  // last finished step
  std::int64_t updates = 0;
  std::uint64_t loss_bits = 0;  // running hash of all losses so far
  std::vector<float> parameters, first_moment, second_moment;
};

// <dir>/step-00000100.ckpt
std::string CheckpointPath(const std::string& directory, std::int64_t step);
// Both return "" or an error that names the file.
std::string SaveCheckpoint(const std::string& path, const Checkpoint& checkpoint);
std::string LoadCheckpoint(const std::string& path, Checkpoint* checkpoint);
// Newest first. A directory that does not exist has none.
std::vector<std::string> ListCheckpoints(const std::string& directory);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_CHECKPOINT_H_
