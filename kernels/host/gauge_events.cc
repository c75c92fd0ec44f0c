// Events and phases of a gauge. They are rare and may come from any thread, such as one that saves checkpoints.
#include <algorithm>
#include <cstring>

#include "kernels/host/clocks.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"

namespace lossgauge {

std::uint64_t Gauge::LoadPhase() const noexcept { return phase_.load(std::memory_order_relaxed); }

void Gauge::PublishPhase() noexcept {
  const std::uint64_t phase =
      phase_order_.empty() ? std::uint64_t{LG_PHASE_TRAIN} : static_cast<std::uint64_t>(phase_order_.back());
  phase_.store(phase, std::memory_order_relaxed);
  lg_ring_status* status = segment_->steps().status();
  ring::StoreRelaxed(&status->phase, phase);
  ring::StoreRelaxed(&status->phase_since_boot_ns, BootNs());
}

int Gauge::BeginPhase(std::int32_t phase) noexcept {
  if (phase <= LG_TRAIN || phase > LG_OTHER) {
    return SetError(LG_INVALID_ARGUMENT,
                    "phase: must be LG_WARM_UP to LG_OTHER (1 to 5; training is what goes on when no phase is open), got %d",
                    phase);
  }
  {
    const std::lock_guard<std::mutex> lock(event_mutex_);
    if (std::find(phase_order_.begin(), phase_order_.end(), phase) != phase_order_.end()) {
      return SetError(LG_FAILED_PRECONDITION, "phase %d has begun already", phase);
    }
    phase_order_.push_back(phase);
    open_phases_.fetch_or(1u << phase, std::memory_order_relaxed);
    PublishPhase();
  }
  return PublishEvent(LG_EVENT_PHASE_BEGIN, -1, 0, 0, nullptr, static_cast<std::uint64_t>(phase));
}

int Gauge::EndPhase(std::int32_t phase) noexcept {
  {
    const std::lock_guard<std::mutex> lock(event_mutex_);
    const auto found = std::find(phase_order_.begin(), phase_order_.end(), phase);
    if (found == phase_order_.end()) return SetError(LG_FAILED_PRECONDITION, "phase %d has not begun", phase);
    phase_order_.erase(found);
    open_phases_.fetch_and(~(1u << phase), std::memory_order_relaxed);
    PublishPhase();
  }
  return PublishEvent(LG_EVENT_PHASE_END, -1, 0, 0, nullptr, static_cast<std::uint64_t>(phase));
}

int Gauge::Resume(std::int64_t step, const char* path) noexcept {
  const int code = SetStep(step + 1);
  if (code != LG_OK) return code;
  return PublishEvent(LG_EVENT_RESUME, step, 0, 0, path, LoadPhase());
}

int Gauge::PublishEvent(std::uint64_t kind, std::int64_t step, double value, std::uint64_t count, const char* text,
                        std::uint64_t phase) noexcept {
  lg_event_record record{};
  record.kind = kind;
  record.step = step;
  record.boot_ns = BootNs();
  record.wall_ns = WallNs();
  record.phase = phase;
  record.value = value;
  record.count = count;
  if (text != nullptr) {
    record.text_bytes = std::strlen(text);
    std::memcpy(record.text, text, std::min<std::size_t>(record.text_bytes, sizeof record.text));
  }
  const std::lock_guard<std::mutex> lock(event_mutex_);
  NoteCall(kind == LG_EVENT_END ? LG_CALL_CLOSE : LG_CALL_EVENT);
  segment_->events().Publish(record);
  return LG_OK;
}

}  // namespace lossgauge
