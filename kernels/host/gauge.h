// The telemetry handle of one rank, as loss calls and the C ABI see it. A gauge is always usable: when its ring could not be made,
// telemetry is off and every call does nothing.
//
// Threads: BlockForLaunch and NoteLossCall may be called by several threads at once; everything else by one.
// Fork: a child sees a dead gauge (BlockForLaunch gives nullptr). The check reads one word that the kernel wipes on fork.
#ifndef LOSSGAUGE_KERNELS_HOST_GAUGE_H_
#define LOSSGAUGE_KERNELS_HOST_GAUGE_H_

#include <cstdint>

#include "kernels/host/counter_block.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {

class Gauge {
 public:
  Gauge(const Gauge&) = delete;
  Gauge& operator=(const Gauge&) = delete;

  // The counters that a launch adds to. `block` -1 = by phase (0, or 1 during evaluation and warm-up). nullptr when there is nothing
  // to add to: telemetry off, forked child, or a block that this gauge does not have (the call is then counted as dropped).
  CounterBlock* BlockForLaunch(std::int32_t block) noexcept;
  // A loss call of the current step begins: entered_step and last_call in the status line.
  void NoteLossCall() noexcept;

  // UTF-8 bytes of each token, [vocab_size()]; nullptr = no table was given.
  const std::uint8_t* token_bytes() const noexcept;
  // Real vocabulary columns over all shards; 0 = unknown.
  std::int64_t vocab_size() const noexcept;
  // First real column of this rank, and how many.
  std::int64_t shard_offset() const noexcept;
  std::int64_t shard_columns() const noexcept;

 protected:
  Gauge() = default;
  ~Gauge() = default;
};

}  // namespace lossgauge

// The C ABI's opaque type.
struct lg_gauge : lossgauge::Gauge {};

#endif  // LOSSGAUGE_KERNELS_HOST_GAUGE_H_
