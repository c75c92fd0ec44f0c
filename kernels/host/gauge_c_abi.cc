// lg_gauge_*: NULL handling, struct sizes, forked children, exceptions. What the calls mean is in gauge.h and lossgauge.h.
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/host/error.h"
#include "kernels/host/gauge.h"
#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_validate.h"

using lossgauge::SetError;

namespace {

constexpr std::size_t kMaxStructSize = 65536;  // larger is an uninitialised structure, not a newer one

const char* ProcessEnvironment(const char* name) { return ::getenv(name); }

// Copies what the caller knows of a structure over our defaults (convention 3).
template <class T>
int ReadStruct(const T* given, const char* name, T* full) {
  if (given == nullptr) return SetError(LG_INVALID_ARGUMENT, "%s: must not be NULL", name);
  const std::size_t size = given->struct_size;
  // No structure of any age ends within a member: half a pointer would be followed.
  if (size <= sizeof(std::size_t) || size > kMaxStructSize || size % alignof(T) != 0) {
    return SetError(LG_INVALID_ARGUMENT,
                    "%s.struct_size: expected about %zu, got %zu; fill the structure with its _init function first", name,
                    sizeof(T), size);
  }
  std::memcpy(full, given, std::min(size, sizeof(T)));
  full->struct_size = sizeof(T);
  return LG_OK;
}

// Runs `call` unless the gauge is NULL, belongs to a parent process, or has its telemetry off.
template <class Call>
int OnGauge(lg_gauge* gauge, Call call) noexcept {
  if (gauge == nullptr) return SetError(LG_INVALID_ARGUMENT, "gauge: must not be NULL");
  if (!gauge->InOwnProcess()) {
    gauge->CountDropped();
    return SetError(LG_FAILED_PRECONDITION, "gauge: belongs to the process that opened it; this one is a forked child");
  }
  if (gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "gauge: is closed");
  if (!gauge->telemetry_on()) {
    gauge->CountDropped();
    return LG_OK;
  }
  return call();
}

// A reader throws away an event of any other step.
int CheckStep(std::int64_t step, std::int64_t most = lossgauge::ring::kMaxStep) {
  if (step >= 0 && step <= most) return LG_OK;
  return SetError(LG_INVALID_ARGUMENT, "step: must be in [0, 2^53%s, got %lld", most == lossgauge::ring::kMaxStep ? "]" : ")", static_cast<long long>(step));
}

// The handles closed last stay objects, so that a call with one of them is told so instead of reading freed memory.
void Bury(lg_gauge* gauge) {
  static std::array<std::atomic<lg_gauge*>, 64> graves{};
  static std::atomic<unsigned> next{0};
  delete graves[next.fetch_add(1, std::memory_order_relaxed) % graves.size()].exchange(gauge, std::memory_order_acq_rel);
}

int CloseGauge(lg_gauge* gauge, std::uint64_t how, const char* reason) noexcept {
  if (gauge == nullptr) return LG_OK;
  if (!gauge->InOwnProcess()) {
    // Nothing is freed: its destructor would touch memory and threads that exist in the parent only.
    return SetError(LG_FAILED_PRECONDITION, "gauge: belongs to the process that opened it; this one is a forked child");
  }
  if (gauge->closed()) return SetError(LG_FAILED_PRECONDITION, "gauge: is closed");
  const int code = gauge->Close(how, reason);
  Bury(gauge);
  return code;
}

}  // namespace

extern "C" {

const char* lg_last_error(void) { return lossgauge::LastError(); }
const char* lg_version(void) { return LOSSGAUGE_VERSION; }

void lg_gauge_options_init(lg_gauge_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof *options;
  options->rank = -1;
  for (lg_axis_option* axis : {&options->tp, &options->pp, &options->cp, &options->ep}) axis->size = 1;
  options->has_loss = 1;
}

int lg_gauge_open(const lg_gauge_options* given, lg_gauge** gauge) {
  if (gauge == nullptr) return SetError(LG_INVALID_ARGUMENT, "gauge: must not be NULL");
  *gauge = nullptr;
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  int code = ReadStruct(given, "options", &options);
  if (code != LG_OK) return code;
  try {
    auto opened = std::make_unique<lg_gauge>();
    code = opened->Open(options, &ProcessEnvironment);
    if (code != LG_INVALID_ARGUMENT) *gauge = opened.release();
    return code;
  } catch (const std::exception&) {
    return SetError(LG_RESOURCE_EXHAUSTED, "no memory is left for a gauge");
  }
}

int lg_gauge_close(lg_gauge* gauge, const char* reason) { return CloseGauge(gauge, LG_CLOSE_FINISHED, reason); }
int lg_gauge_abandon(lg_gauge* gauge, const char* reason) { return CloseGauge(gauge, LG_CLOSE_FAILED, reason); }

int lg_gauge_get_state(const lg_gauge* gauge, lg_gauge_state* state) {
  lg_gauge_state full{};
  const int code = ReadStruct(static_cast<const lg_gauge_state*>(state), "state", &full);
  if (code != LG_OK) return code;
  if (gauge == nullptr) return SetError(LG_INVALID_ARGUMENT, "gauge: must not be NULL");
  const std::size_t size = state->struct_size;
  full = {};
  if (gauge->InOwnProcess()) {
    gauge->GetState(&full);
  } else {
    full.code = SetError(LG_FAILED_PRECONDITION, "gauge: belongs to the process that opened it; this one is a forked child");
    std::strncpy(full.message, lossgauge::LastError(), sizeof full.message - 1);
  }
  full.struct_size = size;
  std::memcpy(state, &full, std::min(size, sizeof full));
  return LG_OK;
}

int lg_gauge_phase_begin(lg_gauge* gauge, int32_t phase) {
  return OnGauge(gauge, [=] { return gauge->BeginPhase(phase); });
}

int lg_gauge_phase_end(lg_gauge* gauge, int32_t phase) {
  return OnGauge(gauge, [=] { return gauge->EndPhase(phase); });
}

int lg_gauge_checkpoint_saved(lg_gauge* gauge, int64_t step, const char* path) {
  return OnGauge(gauge, [=] {
    const int code = CheckStep(step);
    return code != LG_OK ? code : gauge->PublishEvent(LG_EVENT_CHECKPOINT, step, 0, 0, path, gauge->LoadPhase());
  });
}

int lg_gauge_resume(lg_gauge* gauge, int64_t step, const char* path) {
  return OnGauge(gauge, [=] {
    const int code = CheckStep(step, lossgauge::ring::kMaxStep - 1);  // one more step follows
    return code != LG_OK ? code : gauge->Resume(step, path);
  });
}

int lg_gauge_evaluation(lg_gauge* gauge, int64_t step, double loss_nats, int64_t tokens) {
  return OnGauge(gauge, [=] {
    if (tokens < 0) return SetError(LG_INVALID_ARGUMENT, "tokens: must be >= 0, got %lld", static_cast<long long>(tokens));
    const int code = CheckStep(step);
    return code != LG_OK ? code
                         : gauge->PublishEvent(LG_EVENT_EVALUATION, step, loss_nats, static_cast<std::uint64_t>(tokens),
                                               nullptr, gauge->LoadPhase());
  });
}

int lg_gauge_note(lg_gauge* gauge, int64_t step, const char* text) {
  return OnGauge(gauge, [=] {
    if (text == nullptr) return SetError(LG_INVALID_ARGUMENT, "text: must not be NULL");
    const int code = CheckStep(step);
    return code != LG_OK ? code : gauge->PublishEvent(LG_EVENT_NOTE, step, 0, 0, text, gauge->LoadPhase());
  });
}

int lg_gauge_set_scalar(lg_gauge* gauge, int32_t scalar, double value) {
  return OnGauge(gauge, [=] { return gauge->SetScalar(scalar, value); });
}

int lg_gauge_set_scalar_pointer(lg_gauge* gauge, int32_t scalar, const void* value, int32_t dtype) {
  return OnGauge(gauge, [=] { return gauge->SetScalarPointer(scalar, value, dtype); });
}

void lg_reported_loss_init(lg_reported_loss* reported) {
  if (reported == nullptr) return;
  *reported = {};
  reported->struct_size = sizeof *reported;
  reported->dtype = LG_FP32;
  reported->interval = 1;
}

int lg_gauge_set_reported_loss(lg_gauge* gauge, const lg_reported_loss* given) {
  lg_reported_loss reported;
  lg_reported_loss_init(&reported);
  const int code = ReadStruct(given, "reported", &reported);
  return code != LG_OK ? code : OnGauge(gauge, [&] { return gauge->SetReportedLoss(reported); });
}

void lg_observation_init(lg_observation* observation) {
  if (observation == nullptr) return;
  *observation = {};
  observation->struct_size = sizeof *observation;
  observation->block = -1;
}

int lg_gauge_observe(lg_gauge* gauge, const lg_observation* given) {
  lg_observation observation;
  lg_observation_init(&observation);
  const int code = ReadStruct(given, "observation", &observation);
  return code != LG_OK ? code : OnGauge(gauge, [&] { return gauge->Observe(observation); });
}

int lg_gauge_publish(lg_gauge* gauge, void* stream) {
  return OnGauge(gauge, [=] { return gauge->Publish(stream); });
}

int lg_gauge_set_step(lg_gauge* gauge, int64_t step) {
  return OnGauge(gauge, [=] { return gauge->SetStep(step); });
}

}  // extern "C"
