// One tensor-parallel rank: its steps, what they took, and the comparison with the whole head.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_RANK_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_RANK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/examples/pipeline_8b/documents.h"
#include "client/cpp/examples/pipeline_8b/faults.h"
#include "client/cpp/examples/pipeline_8b/options.h"
#include "client/cpp/examples/pipeline_8b/place.h"
#include "lossgauge/gauge.hpp"

namespace lossgauge::pipeline_8b {

// What a rank tells at the end. Plain data: it travels between processes.
struct Report {
  double step_ms, call_ms, loss_only_ms, exchange_ms, reduce_ms, publish_ms;  // medians of a step
  std::int64_t tensor_bytes, workspace_bytes, logits_bytes, peak_bytes;
  double loss, loss_difference, hidden_difference, head_difference;  // relative; < 0: not compared
};

class Rank {
 public:
  Rank(const Options& options, int rank, SharedExchange* exchange, std::string attempt);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // "" or what went wrong.
  std::string Run();

 private:
  RankPart PartOf(std::int64_t step) const;
  std::string OpenGauge(const RankPart& part);
  std::string SetUp(const RankPart& part);
  std::string Step(std::int64_t step);
  // Loss call on what the tensors hold. `gradients`: else loss only.
  std::string Call(std::int64_t step, std::int64_t micro_batch, const RankPart& part, bool gradients, const Gauge* gauge);
  static int Exchange(void* rank, const void* contribution, void* gathered, std::int64_t bytes, void* stream);
  void* Take(std::int64_t bytes);
  // rank_report.cc: against the whole head on this rank's own device; and, by rank 0, what all took.
  std::string Compare(std::int64_t step);
  std::string Tell();

  const Options& options_;
  const int rank_;
  SharedExchange* const exchange_;
  const std::string attempt_;
  std::unique_ptr<Faults> faults_;
  std::unique_ptr<Place> place_;
  std::unique_ptr<Gauge> gauge_;
  std::vector<void*> taken_;
  Labels labels_;
  void *hidden_ = nullptr, *grad_hidden_ = nullptr, *head_ = nullptr, *grad_head_ = nullptr, *targets_ = nullptr, *true_targets_ = nullptr, *loss_ = nullptr;
  std::int64_t loaded_first_ = -1;
  std::uint64_t loaded_seed_ = 0;
  // Of the call under way.
  std::int64_t at_step_ = 0, at_chunk_ = 0;
  std::string exchange_error_;
  std::vector<double> step_ms_, call_ms_, reduce_ms_, publish_ms_;
  Report report_{};
};

}  // namespace lossgauge::pipeline_8b

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_PIPELINE_8B_RANK_H_
