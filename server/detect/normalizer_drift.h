// log Z wandering away from 0 while the loss looks fine: softmax does not care about a constant added to all logits of a row, 16-bit logits do.
//
// The mean of log Z over blocks of 64 steps. A drift is eight blocks in a row that each moved further from 0, or seven of them where none turned
// back by more than the noise of a block, and floor_nats in all: minutes of training, not a jump, which is logit_blowup's. It is a warning where
// somebody should act: a z-loss is in the objective and does not hold log Z, or log Z is beyond limit_nats, where bf16 logits are a quarter of a nat
// apart (8 bits of mantissa at 32 and above). Elsewhere it is info: without a z-loss nothing pulls log Z anywhere.
#ifndef LOSSGAUGE_SERVER_DETECT_NORMALIZER_DRIFT_H_
#define LOSSGAUGE_SERVER_DETECT_NORMALIZER_DRIFT_H_

#include <array>
#include <cstdint>

#include "server/detect/incident_book.h"
#include "server/detect/policy.h"
#include "server/detect/step_signals.h"

namespace lossgauge::detect {

class NormalizerDriftDetector {
 public:
  static constexpr int kBlockSteps = 64;
  static constexpr int kBlocks = 9;  // eight moves
  // Steps without a finite log Z are passed over.
  void OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book);
  void OnAttempt() { *this = NormalizerDriftDetector(); }

  void Save(StateWriter& out) const;
  void Restore(StateReader& in);

 private:
  struct Block {
    std::int64_t first_step = 0;
    double mean_nats = 0;
    double deviation_nats = 0;  // of the mean
  };
  const Block& Back(int i) const { return blocks_[static_cast<std::size_t>((next_ - 1 - i + 2 * kBlocks) % kBlocks)]; }
  bool Drifts(const Policy& policy) const;
  void CloseBlock();
  void ReportTo(IncidentBook& book, const StepSignals& signals, const Policy& policy) const;

  std::array<Block, kBlocks> blocks_{};
  int size_ = 0;
  int next_ = 0;
  std::int32_t in_block_ = 0;
  std::int64_t first_step_ = 0;
  double mean_nats_ = 0;
  double squares_ = 0;
  bool z_loss_ = false;  // seen in the block

  bool open_ = false;
  std::int64_t onset_step_ = 0;
  double onset_nats_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_NORMALIZER_DRIFT_H_
