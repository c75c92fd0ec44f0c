// The telemetry handle of one rank, as loss calls and the C ABI see it. A gauge is always usable: when its ring could not be
// made, telemetry is off and every call does nothing.
//
// Threads: BlockForLaunch, NoteLossCall and Observe may be called by several threads at once, events too; everything else by
// one. Fork: a child sees a dead gauge (BlockForLaunch gives nullptr). The check reads one word that the kernel wipes on fork.
// Step path: no allocation, no lock, no system call.
#ifndef LOSSGAUGE_KERNELS_HOST_GAUGE_H_
#define LOSSGAUGE_KERNELS_HOST_GAUGE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/host/counter_block.h"
#include "kernels/host/device_backend.h"
#include "kernels/host/fork_guard.h"
#include "kernels/host/heartbeat.h"
#include "kernels/host/launcher_identity.h"
#include "kernels/host/segment.h"
#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge {

class Gauge {
 public:
  Gauge() = default;
  ~Gauge() = default;
  Gauge(const Gauge&) = delete;
  Gauge& operator=(const Gauge&) = delete;

  // ---- for loss calls

  // The counters that a launch adds to. `block` -1 = by phase (0, or 1 during evaluation and warm-up). nullptr when there is
  // nothing to add to: telemetry off, forked child, or a block that this gauge does not have (the call is then counted as
  // dropped).
  CounterBlock* BlockForLaunch(std::int32_t block) noexcept;
  // The same as an index, for a backend that keeps counters of its own; -1 = nothing to add to.
  std::int32_t BlockIndexForLaunch(std::int32_t block) noexcept;
  // A loss call of the current step begins: entered_step and last_call in the status line.
  void NoteLossCall() noexcept;

  // UTF-8 bytes of each token, [vocab_size()]; nullptr = no table was given.
  const std::uint8_t* token_bytes() const noexcept { return token_bytes_.empty() ? nullptr : token_bytes_.data(); }
  // Real vocabulary columns over all shards; 0 = unknown.
  std::int64_t vocab_size() const noexcept { return layout_.vocab_size; }
  // First real column of this rank, and how many.
  std::int64_t shard_offset() const noexcept { return layout_.shard_offset; }
  std::int64_t shard_columns() const noexcept { return layout_.shard_columns; }

  // ---- for a device backend

  // The device's side, once a loss call has met a device; from then on steps end there. nullptr = the host's counters.
  DeviceGauge* device() const noexcept { return device_seen_.load(std::memory_order_acquire); }
  void AdoptDevice(std::unique_ptr<DeviceGauge> device) noexcept;
  // The device that a call met cannot serve this gauge (say its ring cannot be mapped there). Tried once, since trying allocates and waits; from then on
  // calls on a device go uncounted and GetState says why. One thread at a time.
  void RefuseDevice(int code, const char* reason) noexcept;
  bool device_refused() const noexcept { return device_refused_.load(std::memory_order_acquire); }
  // Sets the error that the refusal had.
  int SetDeviceError() const noexcept;
  std::int32_t block_count() const noexcept { return block_count_; }
  Segment* segment() const noexcept { return segment_.get(); }
  std::int64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }
  const lg_step_record& totals(std::int32_t block) const noexcept { return totals_[static_cast<std::size_t>(block)]; }

  // ---- for the C ABI; each returns an lg_code and sets the error text

  // May throw std::bad_alloc. LG_INVALID_ARGUMENT: of no use. Any other failure: a gauge whose telemetry is off.
  int Open(const lg_gauge_options& options, Environment environment);
  // Ends the ring and lets go of it; what is left is a gauge that is closed. LG_CLOSE_*.
  int Close(std::uint64_t how, const char* reason) noexcept;
  bool closed() const noexcept { return closed_.load(std::memory_order_relaxed); }
  void GetState(lg_gauge_state* state) const noexcept;
  // False in a forked child, where nothing of the gauge may be touched.
  bool InOwnProcess() const noexcept { return fork_guard_.InOwnProcess(); }
  bool telemetry_on() const noexcept { return segment_ != nullptr; }
  void CountDropped() noexcept { dropped_calls_.fetch_add(1, std::memory_order_relaxed); }

  int SetScalar(std::int32_t scalar, double value) noexcept;
  int SetScalarPointer(std::int32_t scalar, const void* value, std::int32_t dtype) noexcept;
  int SetReportedLoss(const lg_reported_loss& reported) noexcept;
  int Observe(const lg_observation& observation) noexcept;
  int SetStep(std::int64_t step) noexcept;
  int Publish(void* stream) noexcept;

  int BeginPhase(std::int32_t phase) noexcept;
  int EndPhase(std::int32_t phase) noexcept;
  std::uint64_t LoadPhase() const noexcept;
  int Resume(std::int64_t step, const char* path) noexcept;
  int PublishEvent(std::uint64_t kind, std::int64_t step, double value, std::uint64_t count, const char* text,
                   std::uint64_t phase) noexcept;

 private:
  static constexpr std::size_t kScalars = 3;  // lg_scalar
  static constexpr int kMainBlock = 0;
  static constexpr int kEvaluationBlock = 1;

  int CheckOptions(const lg_gauge_options& options, std::vector<std::string>* block_names) const;
  bool IsBlock(std::int32_t block) const noexcept { return block >= 0 && block < block_count_; }
  bool IsEvaluating() const noexcept;
  void NoteCall(std::uint64_t call) noexcept;
  int PlaceObservation(const lg_observation& observation) noexcept;
  int PublishOnDevice(DeviceGauge* device, void* stream) noexcept;
  void DropHostCounts() noexcept;
  void TakeHandedOver(lg_step_record* record) noexcept;
  void AddToTotals(lg_step_record* record) noexcept;
  void PublishPhase() noexcept;  // needs event_mutex_, but for Open

  // Fixed at open.
  ForkGuard fork_guard_;
  lg_layout layout_{};
  std::vector<std::uint8_t> token_bytes_;
  std::int32_t block_count_ = 0;
  int off_code_ = LG_OK;
  std::string off_message_;
  std::unique_ptr<Segment> segment_;  // null = telemetry off
  std::unique_ptr<DeviceGauge> device_;  // dies before the segment whose ring it writes
  std::atomic<DeviceGauge*> device_seen_{nullptr};
  std::atomic<bool> device_refused_{false};  // release: the two below stand
  int refused_code_ = LG_OK;
  char refused_reason_[256] = "";
  Heartbeat heartbeat_;

  // Any thread.
  std::array<CounterBlock, LG_BLOCK_COUNT> blocks_;
  std::atomic<std::int64_t> step_{0};                 // the one being built
  std::atomic<std::uint32_t> open_phases_{0};         // bit = lg_phase
  std::atomic<std::uint64_t> phase_{LG_PHASE_TRAIN};  // the one that began last of those open
  std::atomic<std::uint64_t> dropped_calls_{0};
  std::atomic<bool> closed_{false};

  // The step's thread.
  std::array<HandedOver, kScalars> scalars_;
  bool step_set_ = false;  // by the host, since the last publish
  lg_reported_loss reported_{};
  bool reported_given_ = false;
  std::array<lg_step_record, LG_BLOCK_COUNT> totals_{};  // only their total_ words

  // Events, from any thread; never taken on the step path.
  std::mutex event_mutex_;
  std::vector<std::int32_t> phase_order_;  // open phases, oldest first
};

}  // namespace lossgauge

// The C ABI's opaque type.
struct lg_gauge : lossgauge::Gauge {};

#endif  // LOSSGAUGE_KERNELS_HOST_GAUGE_H_
