// What goes wrong on purpose: faults as they happen in tensor-parallel losses. Only a build for tests has any (tests/client/pipeline_8b_faults.cc); the other's
// is no_faults.cc.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_FAULTS_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_FAULTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/examples/pipeline_8b/options.h"

namespace lossgauge::pipeline_8b {

// What a rank takes for its own, of a step. A fault changes it.
struct RankPart {
  std::int64_t vocab_size;                   // as told to the loss
  std::int64_t shard_offset, shard_columns;  // likewise
  std::int64_t first_row;                    // of the head that it has loaded
  std::uint64_t head_seed;
  std::vector<std::int64_t> targets;
};

class Faults {
 public:
  virtual ~Faults() = default;
  virtual void Spoil(std::int64_t step, int rank, RankPart* part) const = 0;
  // What `receiver` got of an exchange: `ranks` contributions of `bytes` bytes, in host memory.
  virtual void SpoilExchange(std::int64_t step, std::int64_t chunk, int receiver, int ranks, std::int64_t bytes, unsigned char* gathered) = 0;
  virtual bool spoils_exchange() const = 0;
};

std::string CheckFault(const std::string& name, int ranks);  // "" or why not
std::string FaultHelp();
std::unique_ptr<Faults> MakeFaults(const Options& options);  // null: none

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_FAULTS_H_
