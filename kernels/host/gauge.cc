#include "kernels/host/gauge.h"

#include <errno.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "kernels/host/clocks.h"
#include "kernels/host/error.h"
#include "proto/lossgauge/ring/ring_reader.h"

namespace lossgauge {
namespace {

void CopyText(char* field, std::size_t field_bytes, const std::string& text) {
  std::memcpy(field, text.data(), std::min(text.size(), field_bytes - 1));
}

}  // namespace

std::int32_t Gauge::BlockIndexForLaunch(std::int32_t block) noexcept {
  if (!InOwnProcess()) return -1;
  if (block == -1) block = IsEvaluating() ? kEvaluationBlock : kMainBlock;
  if (telemetry_on() && IsBlock(block)) return block;
  CountDropped();
  return -1;
}

CounterBlock* Gauge::BlockForLaunch(std::int32_t block) noexcept {
  const std::int32_t index = BlockIndexForLaunch(block);
  if (index < 0) return nullptr;
  // Steps of this gauge end on a device: what the host's counters held would never be folded.
  if (device() != nullptr) {
    CountDropped();
    return nullptr;
  }
  return &blocks_[static_cast<std::size_t>(index)];
}

void Gauge::AdoptDevice(std::unique_ptr<DeviceGauge> device) noexcept {
  device_ = std::move(device);
  device_seen_.store(device_.get(), std::memory_order_release);
}

void Gauge::RefuseDevice(int code, const char* reason) noexcept {
  refused_code_ = code;
  std::snprintf(refused_reason_, sizeof refused_reason_, "%s", reason);
  device_refused_.store(true, std::memory_order_release);
}

int Gauge::SetDeviceError() const noexcept { return SetError(static_cast<lg_code>(refused_code_), "%s", refused_reason_); }

void Gauge::NoteLossCall() noexcept {
  if (!InOwnProcess() || !telemetry_on()) return;
  ring::StoreRelaxed(&segment_->steps().status()->entered_step, step_.load(std::memory_order_relaxed));
  NoteCall(LG_CALL_LOSS);
}

bool Gauge::IsEvaluating() const noexcept {
  constexpr std::uint32_t kApart = 1u << LG_WARM_UP | 1u << LG_EVALUATION;
  return (open_phases_.load(std::memory_order_relaxed) & kApart) != 0;
}

void Gauge::NoteCall(std::uint64_t call) noexcept {
  lg_ring_status* status = segment_->steps().status();
  ring::StoreRelaxed(&status->last_call, call);
  ring::StoreRelaxed(&status->last_call_boot_ns, BootNs());
}

int Gauge::CheckOptions(const lg_gauge_options& options, std::vector<std::string>* block_names) const {
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1)) {
    return SetError(LG_INVALID_ARGUMENT, "label_smoothing: must be in [0, 1), got %g", options.label_smoothing);
  }
  if (!(options.z_loss_weight >= 0 && std::isfinite(options.z_loss_weight))) {
    return SetError(LG_INVALID_ARGUMENT, "z_loss_weight: must be finite and >= 0, got %g", options.z_loss_weight);
  }
  if (options.first_step < 0) {
    return SetError(LG_INVALID_ARGUMENT, "first_step: must be >= 0, got %lld", static_cast<long long>(options.first_step));
  }
  if (options.token_bytes != nullptr && options.vocab_size <= 0) {
    return SetError(LG_INVALID_ARGUMENT, "token_bytes: needs vocab_size, the number of its entries");
  }
  if (options.block_names == nullptr) {
    *block_names = {"train", "eval"};
    return LG_OK;
  }
  if (options.block_count < 1 || options.block_count > static_cast<std::int32_t>(LG_BLOCK_COUNT)) {
    return SetError(LG_INVALID_ARGUMENT, "block_count: must be in [1, %u] when block_names is given, got %d", LG_BLOCK_COUNT,
                    options.block_count);
  }
  for (std::int32_t i = 0; i < options.block_count; ++i) {
    const char* name = options.block_names[i];
    const std::size_t bytes = name == nullptr ? 0 : std::strlen(name);
    if (bytes < 1 || bytes >= LG_BLOCK_NAME_BYTES) {
      return SetError(LG_INVALID_ARGUMENT, "block_names[%d]: must have 1 to %u bytes, got %zu", i, LG_BLOCK_NAME_BYTES - 1,
                      bytes);
    }
    if (std::find(block_names->begin(), block_names->end(), name) != block_names->end()) {
      return SetError(LG_INVALID_ARGUMENT, "block_names[%d]: \"%s\" is there already", i, name);
    }
    block_names->emplace_back(name);
  }
  return LG_OK;
}

int Gauge::Open(const lg_gauge_options& options, Environment environment) {
  std::vector<std::string> block_names;
  int code = CheckOptions(options, &block_names);
  if (code != LG_OK) return code;
  LauncherIdentity identity;
  code = ResolveIdentity(options, environment, WallNs(), &identity);
  if (code == LG_INVALID_ARGUMENT) return code;

  layout_ = identity.layout;
  step_.store(options.first_step, std::memory_order_relaxed);
  block_count_ = static_cast<std::int32_t>(block_names.size());
  if (options.token_bytes != nullptr) token_bytes_.assign(options.token_bytes, options.token_bytes + options.vocab_size);
  phase_order_.reserve(LG_OTHER + 1);  // so that no phase call allocates

  if (code == LG_OK) {
    SegmentRequest request;
    request.directory = options.ring_dir != nullptr ? options.ring_dir : environment("LOSSGAUGE_RING_DIR");
    request.group = options.group;
    request.identity.layout = identity.layout;
    request.identity.attempt_start_wall_ns = identity.attempt_start_wall_ns;
    request.identity.label_smoothing = options.label_smoothing;
    request.identity.z_loss_weight = options.z_loss_weight;
    CopyText(request.identity.run, sizeof request.identity.run, identity.run);
    CopyText(request.identity.attempt, sizeof request.identity.attempt, identity.attempt);
    for (std::size_t i = 0; i < block_names.size(); ++i) {
      CopyText(request.identity.block_names[i], sizeof request.identity.block_names[i], block_names[i]);
    }
    code = Segment::Create(request, &segment_);
  }
  if (code == LG_OK &&
      !heartbeat_.Start(&segment_->steps().status()->heartbeat_boot_ns, &segment_->events().status()->heartbeat_boot_ns)) {
    code = SetError(LG_RESOURCE_EXHAUSTED, "heartbeat thread: cannot be made: %s", std::strerror(errno));
    segment_.reset();  // without a beat a reader would call this producer frozen
  }
  if (code == LG_OK) {
    PublishPhase();
    NoteCall(LG_CALL_OPEN);
  } else {
    off_code_ = code;
    off_message_ = LastError();
  }
  return code;
}

int Gauge::Close(std::uint64_t how, const char* reason) noexcept {
  closed_.store(true, std::memory_order_relaxed);
  if (!telemetry_on()) return LG_OK;
  // Waits for what a device still publishes: the END event comes behind the last step.
  device_seen_.store(nullptr, std::memory_order_release);
  device_.reset();
  NoteCall(LG_CALL_CLOSE);
  PublishEvent(LG_EVENT_END, -1, 0, how, reason, LoadPhase());
  heartbeat_.Stop();
  ring::StoreRelease(&segment_->events().status()->closed, how);
  ring::StoreRelease(&segment_->steps().status()->closed, how);  // release: who sees it, sees the END event
  segment_.reset();
  off_code_ = LG_FAILED_PRECONDITION;
  off_message_ = "gauge: is closed";  // short enough not to allocate
  return LG_OK;
}

void Gauge::GetState(lg_gauge_state* state) const noexcept {
  state->telemetry_on = telemetry_on() ? 1 : 0;
  const bool uncounted = telemetry_on() && device_refused();
  state->code = uncounted ? refused_code_ : off_code_;
  std::snprintf(state->message, sizeof state->message, "%s", uncounted ? refused_reason_ : off_message_.c_str());
  std::snprintf(state->steps_path, sizeof state->steps_path, "%s", telemetry_on() ? segment_->steps_path().c_str() : "");
  state->next_step = step_.load(std::memory_order_relaxed);
  // By the ring itself: a device counts there too.
  const auto* const steps = telemetry_on() ? static_cast<const lg_ring_header*>(segment_->steps_memory()) : nullptr;
  state->published = steps != nullptr ? ring::ReadProgress(steps, steps->identity).whole : 0;
  state->dropped_calls = dropped_calls_.load(std::memory_order_relaxed);
  state->ring_bytes = telemetry_on() ? segment_->bytes() : 0;
}

}  // namespace lossgauge
