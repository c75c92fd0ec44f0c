// The best level that a loss has reached, and whether it has left it for good: a drift that begins while a window still holds the steep descent is
// far below that window's median, and nothing that looks back a window long sees it.
#ifndef LOSSGAUGE_SERVER_DETECT_BEST_LEVEL_H_
#define LOSSGAUGE_SERVER_DETECT_BEST_LEVEL_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "server/detect/sorted_window.h"
#include "server/detect/state_codec.h"

namespace lossgauge::detect {

class BestLevel {
 public:
  static constexpr int kBlock = 15;  // values, whose median is a level
  static constexpr int kBlocksAway = 2;
  static constexpr double kAwayNats = 1;
  static constexpr double kAwayDeviations = 6;
  struct Rise {
    double from_nats = 0;
    double to_nats = 0;
    double noise_nats = 0;
    std::int64_t onset_step = 0;  // the first behind the best block
  };

  // A rise where two blocks in a row lie a nat and six deviations of the best block above it.
  std::optional<Rise> Push(double value, std::int64_t step) {
    block_.Add(value);
    if (++in_block_ < kBlock) return std::nullopt;
    in_block_ = 0;
    const double level = block_.Median();
    if (!known_ || level < best_nats_) {
      known_ = true;
      best_nats_ = level;
      noise_nats_ = block_.RobustDeviation();
      onset_step_ = step + 1;
      away_ = 0;
      return std::nullopt;
    }
    away_ = level - best_nats_ >= std::max(kAwayNats, kAwayDeviations * noise_nats_) ? away_ + 1 : 0;
    if (away_ < kBlocksAway) return std::nullopt;
    return Rise{best_nats_, level, noise_nats_, onset_step_};
  }

  void Save(StateWriter& out) const {
    block_.Save(out);
    out.Put(in_block_);
    out.Put<std::uint8_t>(known_);
    out.Put(best_nats_);
    out.Put(noise_nats_);
    out.Put(onset_step_);
    out.Put(away_);
  }
  void Restore(StateReader& in) {
    block_.Restore(in);
    in_block_ = in.GetIn<std::int32_t>(0, kBlock - 1);
    known_ = in.GetBool();
    best_nats_ = in.GetFinite();
    noise_nats_ = in.GetFinite();
    onset_step_ = in.GetStep();
    away_ = in.GetIn<std::int32_t>(0, 1 << 30);
  }

 private:
  SortedWindow<kBlock> block_;
  std::int32_t in_block_ = 0;
  bool known_ = false;
  double best_nats_ = 0;
  double noise_nats_ = 0;
  std::int64_t onset_step_ = 0;
  std::int32_t away_ = 0;
};

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_BEST_LEVEL_H_
