// One rank's training loop: where a job meets its gauge.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_TRAINER_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/examples/train_text/all_reduce.h"
#include "client/cpp/examples/train_text/batches.h"
#include "client/cpp/examples/train_text/checkpoint.h"
#include "client/cpp/examples/train_text/faults.h"
#include "client/cpp/examples/train_text/flags.h"
#include "client/cpp/examples/train_text/model.h"
#include "client/cpp/examples/train_text/optimizer.h"
#include "client/cpp/examples/train_text/text_corpus.h"
#include "client/cpp/examples/train_text/thread_pool.h"
#include "lossgauge/gauge.hpp"

namespace lossgauge::train_text {

ModelShape ShapeOf(const Options& options, std::int64_t vocab_size);

// What all ranks of one start share.
struct Start {
  std::string attempt;
  std::int64_t wall_ns = 0;  // CLOCK_REALTIME of rank 0's start
};

class Trainer {
 public:
  // `stop` becomes true when the job is asked to end; looked at once a step.
  Trainer(const Options& options, const TextCorpus& corpus, RankGroup* group, int rank, const Start& start, const std::atomic<bool>* stop);
  // Trains to the end. Returns "" or why it could not.
  std::string Run();

 private:
  // Sums over the rows of a step, over all ranks once reduced. Nats and tokens.
  struct StepSums {
    double objective = 0;     // of the losses as the library returned them; NaN if a row is
    double z_loss = 0;
    double log_z = 0;
    double unmasked = 0;
    double next_unmasked = 0;  // of the step to come: exchanged early, so that no rank waits before its losses
    double stop = 0;           // ranks that were asked to end
    double Loss() const { return unmasked > 0 ? objective / unmasked : 0; }  // nats per token
  };

  std::string OpenGauge();
  std::string Resume();
  std::string TrainStep(std::int64_t step, bool* stop);
  std::string MicroBatch(std::int64_t step, const Batch& batch, StepSums* sums);
  // Loss of the hidden states in model_, and of a micro-batch that trains its gradients. `loss` has everything but the tensors of the model.
  std::string RunLoss(std::int64_t step, const lg_cross_entropy_args& loss, const Batch& batch, bool trains);
  std::string Evaluate(std::int64_t step, bool report);
  std::string SaveCheckpoint(std::int64_t step);
  std::string Hang();
  // Fills batches_ with this rank's part of a step.
  void LoadStep(std::int64_t step);
  std::int64_t UnmaskedOfThisRank() const;
  void Log(std::int64_t step, const StepSums& sums, double reported, double grad_norm, double learning_rate, bool updated);
  std::string PrintBits();

  const Options& options_;
  const TextCorpus& corpus_;
  RankGroup* const group_;
  const int rank_;
  const Start start_;
  const std::atomic<bool>* const stop_;
  const BatchShape batch_shape_;
  const FaultPlan faults_;
  ThreadPool pool_;
  Model model_;
  AdamW optimizer_;
  Gauge gauge_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_file_{nullptr, &std::fclose};
  std::int64_t first_step_ = 0;
  std::vector<Batch> batches_;  // one per micro-batch; the next step's once this one's are used
  double unmasked_now_ = 0;  // of the step in hand, over all ranks
  std::uint64_t loss_bits_ = 0;
  std::int64_t skipped_ = 0;  // updates
  std::vector<float> losses_, log_z_;
  std::vector<float> head_, head_gradients_, hidden_gradients_;  // with --linear_head; the head and its gradients as [columns, H]
};

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_TRAINER_H_
