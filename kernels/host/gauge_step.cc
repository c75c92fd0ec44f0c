// The step path of a gauge: what is handed over for a step, and publish, which turns counters into records.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/host/clocks.h"
#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/host/observed.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_validate.h"

namespace lossgauge {
namespace {

const char* ScalarName(std::int32_t scalar) {
  switch (scalar) {
    case LG_GRAD_NORM:
      return "LG_GRAD_NORM";
    case LG_LEARNING_RATE:
      return "LG_LEARNING_RATE";
    default:
      return "LG_DENOMINATOR";
  }
}

// Nothing on the host can read memory of a device.
bool IsReadable(const HandedOver& scalar) {
  if (scalar.pointer == nullptr) return true;
  DeviceBackend* backend = FindDeviceBackend();
  return backend == nullptr || backend->DeviceOf(scalar.pointer) < 0;
}

double Read(const HandedOver& scalar) {
  if (scalar.pointer == nullptr) return scalar.value;
  if (scalar.dtype == LG_FP32) {
    float single;
    std::memcpy(&single, scalar.pointer, sizeof single);  // the job's memory may have any alignment
    return single;
  }
  double whole;
  std::memcpy(&whole, scalar.pointer, sizeof whole);
  return whole;
}

bool IsDenominator(double value) { return std::isfinite(value) && value > 0; }

void AddTo(lg_fixed128* total, const lg_fixed128& term) { *total = lg_fixed128_add(*total, term); }

}  // namespace

int Gauge::SetScalar(std::int32_t scalar, double value) noexcept {
  if (scalar < 0 || scalar >= static_cast<std::int32_t>(kScalars)) {
    return SetError(LG_INVALID_ARGUMENT, "scalar: must be an lg_scalar (0 to %zu), got %d", kScalars - 1, scalar);
  }
  if (scalar == LG_DENOMINATOR && !IsDenominator(value)) {
    return SetError(LG_INVALID_ARGUMENT, "value: a denominator must be finite and > 0, got %g", value);
  }
  scalars_[static_cast<std::size_t>(scalar)] = {true, value, nullptr, LG_FP64};
  return LG_OK;
}

int Gauge::SetScalarPointer(std::int32_t scalar, const void* value, std::int32_t dtype) noexcept {
  if (scalar < 0 || scalar >= static_cast<std::int32_t>(kScalars)) {
    return SetError(LG_INVALID_ARGUMENT, "scalar: must be an lg_scalar (0 to %zu), got %d", kScalars - 1, scalar);
  }
  if (value == nullptr) return SetError(LG_INVALID_ARGUMENT, "value: must point to the %s, got NULL", ScalarName(scalar));
  if (dtype != LG_FP32 && dtype != LG_FP64) {
    return SetError(LG_INVALID_ARGUMENT, "dtype: must be LG_FP32 or LG_FP64 for %s, got %d", ScalarName(scalar), dtype);
  }
  if (const DeviceGauge* device = this->device()) {
    DeviceBackend* backend = FindDeviceBackend();
    const int found = backend != nullptr ? backend->DeviceOf(value) : -1;
    if (found != device->ordinal()) {
      return SetError(LG_INVALID_ARGUMENT, "value: must point to memory of device %d for %s, where this gauge counts, got %s", device->ordinal(),
                      ScalarName(scalar), found < 0 ? "host memory" : "memory of another device");
    }
    const std::uintptr_t bytes = dtype == LG_FP64 ? 8 : 4;
    if (reinterpret_cast<std::uintptr_t>(value) % bytes != 0) {
      return SetError(LG_INVALID_ARGUMENT, "value: must be aligned to its %d bytes on a device for %s, got %p", static_cast<int>(bytes), ScalarName(scalar), value);
    }
  }
  scalars_[static_cast<std::size_t>(scalar)] = {true, 0, value, dtype};
  return LG_OK;
}

int Gauge::SetReportedLoss(const lg_reported_loss& reported) noexcept {
  if (reported.dtype < LG_FP32 || reported.dtype > LG_FP64) {
    return SetError(LG_INVALID_ARGUMENT, "reported.dtype: must be LG_FP32, LG_BF16, LG_FP16 or LG_FP64, got %d",
                    reported.dtype);
  }
  if (reported.interval < 1) {
    return SetError(LG_INVALID_ARGUMENT, "reported.interval: must be >= 1 step, got %lld",
                    static_cast<long long>(reported.interval));
  }
  reported_ = reported;
  reported_given_ = true;
  return LG_OK;
}

int Gauge::Observe(const lg_observation& observation) noexcept {
  const lg_observation& o = observation;
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  if (o.tokens < 0) return SetError(LG_INVALID_ARGUMENT, "observation.tokens: must be >= 0, got %lld", number(o.tokens));
  const bool counts_known = o.unmasked_tokens_pointer == nullptr;
  if (counts_known && (o.unmasked_tokens < 0 || o.unmasked_tokens > o.tokens)) {
    return SetError(LG_INVALID_ARGUMENT, "observation.unmasked_tokens: must be in [0, tokens = %lld], got %lld",
                    number(o.tokens), number(o.unmasked_tokens));
  }
  if (o.nonfinite_rows < 0 || (counts_known && o.nonfinite_rows > o.unmasked_tokens)) {
    return SetError(LG_INVALID_ARGUMENT, "observation.nonfinite_rows: must be in [0, unmasked_tokens = %lld], got %lld",
                    number(o.unmasked_tokens), number(o.nonfinite_rows));
  }
  if (o.nll_sum_pointer == nullptr && o.nll_sum < 0) {
    return SetError(LG_INVALID_ARGUMENT,
                    "observation.nll_sum: must be >= 0 (it is a negative log-likelihood, and becomes a counter), got %g; hand other losses over with "
                    "lg_gauge_set_reported_loss",
                    o.nll_sum);
  }
  if (o.denominator_pointer == nullptr && o.denominator != 0 && !IsDenominator(o.denominator)) {
    return SetError(LG_INVALID_ARGUMENT, "observation.denominator: must be finite and > 0, or 0 = not given, got %g",
                    o.denominator);
  }
  if (o.block < -1 || o.block >= block_count_) {
    return SetError(LG_INVALID_ARGUMENT, "observation.block: must be in [-1, %d), got %d", block_count_, o.block);
  }
  if (const int code = PlaceObservation(o); code != LG_OK) return code;
  const std::int32_t index = BlockIndexForLaunch(o.block);
  if (index < 0) return LG_OK;
  ring::StoreRelaxed(&segment_->steps().status()->entered_step, step_.load(std::memory_order_relaxed));
  NoteCall(LG_CALL_OBSERVE);

  static_assert(sizeof(long long) == sizeof(std::int64_t));
  const auto* const unmasked_tokens = reinterpret_cast<const long long*>(o.unmasked_tokens_pointer);
  const Observed observed{o.nll_sum,     o.tokens,          o.unmasked_tokens, o.nonfinite_rows,
                          o.denominator, o.nll_sum_pointer, unmasked_tokens,   o.denominator_pointer};
  if (DeviceGauge* device = this->device()) return device->Observe(index, observed, o.stream);
  const ObservedCounts counts = CountObserved(observed);
  LaunchCounters launch;
  launch.present = LG_HAS_LOSS;
  launch.tokens = counts.tokens;
  launch.unmasked_tokens = counts.unmasked_tokens;
  launch.nonfinite_rows = counts.nonfinite_rows;
  launch.finite_tokens = counts.finite_tokens;
  launch.clamped_rows = counts.clamped_rows;
  launch.nll_sum = counts.nll_sum;
  launch.denominator = counts.denominator;
  blocks_[static_cast<std::size_t>(index)].Add(launch);
  return LG_OK;
}

// Sees to it that a device counts what a device holds, and that everything an observation points to can be read where the gauge counts.
int Gauge::PlaceObservation(const lg_observation& o) noexcept {
  struct Pointer {
    const char* name;
    const void* memory;
  };
  const Pointer pointers[] = {{"nll_sum_pointer", o.nll_sum_pointer},
                              {"unmasked_tokens_pointer", o.unmasked_tokens_pointer},
                              {"denominator_pointer", o.denominator_pointer}};
  DeviceBackend* backend = FindDeviceBackend();
  const auto device_of = [backend](const void* memory) { return backend != nullptr && memory != nullptr ? backend->DeviceOf(memory) : -1; };
  const void* on_device = nullptr;
  for (const Pointer& pointer : pointers) {
    if (reinterpret_cast<std::uintptr_t>(pointer.memory) % 8 != 0) {
      return SetError(LG_INVALID_ARGUMENT, "observation.%s: must be aligned to its 8 bytes, got %p", pointer.name, pointer.memory);
    }
    if (on_device == nullptr && device_of(pointer.memory) >= 0) on_device = pointer.memory;
  }
  if (o.stream != nullptr || on_device != nullptr || device() != nullptr) {
    if (backend == nullptr) return SetError(LG_UNIMPLEMENTED, "observation.stream: expected NULL, since there is no device here; got a stream");
    if (backend->IsCapturing(o.stream)) {
      // A graph would replay the values of now.
      const bool from_host = o.nonfinite_rows != 0 || (o.denominator_pointer == nullptr && o.denominator != 0);
      if (o.nll_sum_pointer == nullptr || o.unmasked_tokens_pointer == nullptr || from_host) {
        return SetError(LG_FAILED_PRECONDITION,
                        "observation.stream: is being captured, and values from the host belong to one step; give pointers, or observe outside of the capture");
      }
      if (device() == nullptr) return SetError(LG_FAILED_PRECONDITION, "observation.stream: is being captured, and a gauge's first call on a device allocates");
    }
    if (const int code = device() != nullptr ? LG_OK : backend->Adopt(this, o.stream, on_device); code != LG_OK) return code;
  }
  const DeviceGauge* const counts_on = device();
  for (const Pointer& pointer : pointers) {
    if (pointer.memory == nullptr) continue;
    const int found = device_of(pointer.memory), expected = counts_on != nullptr ? counts_on->ordinal() : -1;
    if (found != expected) {
      return SetError(LG_INVALID_ARGUMENT, "observation.%s: must point to memory of device %d, where this gauge counts, got %s", pointer.name, expected,
                      found < 0 ? "host memory" : "memory of another device");
    }
  }
  return LG_OK;
}

int Gauge::SetStep(std::int64_t step) noexcept {
  if (step < 0 || step > ring::kMaxStep) {
    return SetError(LG_INVALID_ARGUMENT, "step: must be in [0, 2^53], got %lld", static_cast<long long>(step));
  }
  step_.store(step, std::memory_order_relaxed);
  step_set_ = true;
  return LG_OK;
}

void Gauge::TakeHandedOver(lg_step_record* record) noexcept {
  const auto given = [this](lg_scalar scalar) {
    if (!scalars_[scalar].given || IsReadable(scalars_[scalar])) return scalars_[scalar].given;
    CountDropped();
    return false;
  };
  if (given(LG_GRAD_NORM)) {
    record->present |= LG_HAS_GRAD_NORM;
    record->grad_norm = Read(scalars_[LG_GRAD_NORM]);
  }
  if (given(LG_LEARNING_RATE)) {
    record->present |= LG_HAS_LEARNING_RATE;
    record->learning_rate = Read(scalars_[LG_LEARNING_RATE]);
  }
  if (given(LG_DENOMINATOR)) {
    // From a pointer it may be anything; what is no denominator is dropped and counted rather than believed.
    const double denominator = Read(scalars_[LG_DENOMINATOR]);
    if (IsDenominator(denominator)) {
      record->present |= LG_HAS_DENOMINATOR;
      record->denominator_min = denominator;
      record->denominator_max = denominator;
    } else {
      CountDropped();
    }
  }
  if (reported_given_) {
    record->present |= LG_HAS_REPORTED_LOSS;
    record->reported_loss = reported_.value;
    record->reported_loss_auxiliary = reported_.auxiliary;
    record->reported_loss_dtype = static_cast<std::uint64_t>(reported_.dtype);
    record->reported_loss_interval = static_cast<std::uint64_t>(reported_.interval);
  }
  scalars_ = {};
  reported_given_ = false;
}

void Gauge::AddToTotals(lg_step_record* record) noexcept {
  lg_step_record& total = totals_[record->block];
  const bool nonfinite = record->nonfinite_rows != 0 || record->nonfinite_grad_rows != 0 || !std::isfinite(record->grad_norm) ||
                         !std::isfinite(record->reported_loss) || !std::isfinite(record->learning_rate);
  total.total_steps += 1;
  total.total_tokens += record->tokens;
  total.total_unmasked_tokens += record->unmasked_tokens;
  total.total_finite_tokens += record->finite_tokens;
  total.total_nonfinite_rows += record->nonfinite_rows;
  total.total_bad_targets += record->bad_targets;
  total.total_target_bytes += record->target_bytes;
  total.total_nonfinite_grad_rows += record->nonfinite_grad_rows;
  AddTo(&total.total_nll_sum, record->nll_sum);
  AddTo(&total.total_scored_nll_sum, record->scored_nll_sum);
  AddTo(&total.total_z_loss_sum, record->z_loss_sum);
  total.total_correct_tokens += record->correct_tokens;
  total.total_clamped_rows += record->clamped_rows;
  total.total_mass_error_rows += record->mass_error_rows;
  total.total_nonfinite_steps += nonfinite ? 1 : 0;

  record->total_steps = total.total_steps;
  record->total_tokens = total.total_tokens;
  record->total_unmasked_tokens = total.total_unmasked_tokens;
  record->total_finite_tokens = total.total_finite_tokens;
  record->total_nonfinite_rows = total.total_nonfinite_rows;
  record->total_bad_targets = total.total_bad_targets;
  record->total_target_bytes = total.total_target_bytes;
  record->total_nonfinite_grad_rows = total.total_nonfinite_grad_rows;
  record->total_nll_sum = total.total_nll_sum;
  record->total_scored_nll_sum = total.total_scored_nll_sum;
  record->total_z_loss_sum = total.total_z_loss_sum;
  record->total_correct_tokens = total.total_correct_tokens;
  record->total_clamped_rows = total.total_clamped_rows;
  record->total_mass_error_rows = total.total_mass_error_rows;
  record->total_nonfinite_steps = total.total_nonfinite_steps;
}

// Launches on the host that had begun, or were done, when the gauge met its device: their counts are nowhere that a step ends.
void Gauge::DropHostCounts() noexcept {
  for (std::int32_t block = 0; block < block_count_; ++block) {
    CounterBlock& counters = blocks_[static_cast<std::size_t>(block)];
    if (counters.IsEmpty()) continue;
    lg_step_record lost{};
    counters.Fold(&lost);
    dropped_calls_.fetch_add(lost.micro_batches, std::memory_order_relaxed);
  }
}

int Gauge::PublishOnDevice(DeviceGauge* device, void* stream) noexcept {
  DeviceBackend* backend = FindDeviceBackend();
  for (HandedOver& scalar : scalars_) {
    // A kernel that reads the host's memory would end the job's CUDA context. Set before the gauge met its device, or the pointer's memory has changed hands.
    if (!scalar.given || scalar.pointer == nullptr || (backend != nullptr && backend->DeviceOf(scalar.pointer) == device->ordinal())) continue;
    scalar = {};
    CountDropped();
  }
  StepEnd end;
  end.grad_norm = scalars_[LG_GRAD_NORM];
  end.learning_rate = scalars_[LG_LEARNING_RATE];
  end.denominator = scalars_[LG_DENOMINATOR];
  end.reported_given = reported_given_;
  end.reported = reported_;
  end.phase = LoadPhase();
  const std::int64_t step = step_.load(std::memory_order_relaxed);
  if (step_set_) end.set_step = step;
  if (backend != nullptr && backend->IsCapturing(stream)) {
    // A graph would replay the values of now: what changes from step to step must be read on the device.
    const auto from_host = [](const HandedOver& scalar) { return scalar.given && scalar.pointer == nullptr; };
    if (from_host(end.grad_norm) || from_host(end.learning_rate) || from_host(end.denominator) || end.reported_given || step_set_) {
      return SetError(LG_FAILED_PRECONDITION,
                      "stream: is being captured, so values of the step must come from device pointers (lg_gauge_set_scalar_pointer), "
                      "and its number counts on by itself");
    }
  }
  NoteCall(LG_CALL_PUBLISH);
  ring::StoreRelaxed(&segment_->steps().status()->enqueued_step, step);
  DropHostCounts();
  const int code = device->Publish(end, stream);
  if (code != LG_OK) return code;
  scalars_ = {};
  reported_given_ = false;
  step_set_ = false;
  step_.store(step + 1, std::memory_order_relaxed);
  return LG_OK;
}

int Gauge::Publish(void* stream) noexcept {
  if (DeviceGauge* device = this->device()) return PublishOnDevice(device, stream);
  if (stream != nullptr && FindDeviceBackend() == nullptr) {
    return SetError(LG_UNIMPLEMENTED, "stream: expected NULL, since there is no device here; got a stream");
  }
  const std::int64_t step = step_.load(std::memory_order_relaxed);
  lg_ring_status* status = segment_->steps().status();
  NoteCall(LG_CALL_PUBLISH);
  ring::StoreRelaxed(&status->enqueued_step, step);
  const std::int64_t boot_ns = BootNs();
  const std::int64_t wall_ns = WallNs();
  const std::uint64_t phase = LoadPhase();
  // The main block goes last: who has its record of a step, has all of the step.
  for (std::int32_t block = block_count_ - 1; block >= 0; --block) {
    lg_step_record record{};
    const bool added_to = blocks_[static_cast<std::size_t>(block)].Fold(&record);
    if (!added_to && block != kMainBlock) continue;
    record.step = step;
    record.block = static_cast<std::uint64_t>(block);
    record.phase = phase;
    record.boot_ns = boot_ns;
    record.wall_ns = wall_ns;
    if (block == kMainBlock) TakeHandedOver(&record);
    AddToTotals(&record);
    segment_->steps().Publish(record);
  }
  ring::StoreRelaxed(&status->published_step, step);
  step_set_ = false;
  step_.store(step + 1, std::memory_order_relaxed);
  return LG_OK;
}

}  // namespace lossgauge
