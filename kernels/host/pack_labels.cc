// lg_pack_labels: checks, and the loop over positions of the host.
#include <cstddef>
#include <cstdint>

#include "kernels/host/device_backend.h"
#include "kernels/host/error.h"
#include "kernels/host/guarded.h"
#include "kernels/host/label_reason.h"
#include "kernels/host/read_structure.h"
#include "kernels/include/lossgauge/lossgauge.h"

namespace lossgauge {
namespace {

constexpr char kFunction[] = "lg_pack_labels";

long long Number(std::int64_t value) { return value; }

int Wrong(const char* name, const char* expected, long long got) {
  return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected %s, got %lld", kFunction, name, expected, got);
}

int Check(const lg_pack_labels_args& a) {
  if (a.count < 0) return Wrong("count", "0 or more", a.count);
  if (a.documents < 0) return Wrong("documents", "0 or more", a.documents);
  if (a.token_dtype != LG_INT32 && a.token_dtype != LG_INT64) return Wrong("token_dtype", "LG_INT32 or LG_INT64", a.token_dtype);
  if (a.length_dtype != LG_INT32 && a.length_dtype != LG_INT64) return Wrong("length_dtype", "LG_INT32 or LG_INT64", a.length_dtype);
  const struct {
    const char* name;
    const void* pointer;
    bool needed;
  } arrays[] = {{"tokens", a.tokens, a.count > 0}, {"labels", a.labels, a.count > 0}, {"cu_seqlens", a.cu_seqlens, true}};
  for (const auto& array : arrays) {
    if (array.needed && array.pointer == nullptr) return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected a pointer, got NULL", kFunction, array.name);
  }
  if (a.count > 0 && a.labels == a.tokens) return SetError(LG_INVALID_ARGUMENT, "%s: labels: expected memory of their own, got tokens'", kFunction);
  return LG_OK;
}

template <class Length>
int CheckLengths(const lg_pack_labels_args& a) {
  const auto* bounds = static_cast<const Length*>(a.cu_seqlens);
  const auto* prompts = static_cast<const Length*>(a.prompt_lengths);
  if (bounds[0] != 0) return Wrong("cu_seqlens", "0 first", bounds[0]);
  for (std::int64_t d = 0; d < a.documents; ++d) {
    if (bounds[d + 1] < bounds[d]) {
      return SetError(LG_INVALID_ARGUMENT, "%s: cu_seqlens: expected numbers that never fall, got %lld behind %lld", kFunction, Number(bounds[d + 1]),
                      Number(bounds[d]));
    }
    if (prompts != nullptr && prompts[d] < 0) return Wrong("prompt_lengths", "no negative number", prompts[d]);
  }
  if (bounds[a.documents] > a.count) {
    return SetError(LG_INVALID_ARGUMENT, "%s: cu_seqlens: expected at most %lld, the number of tokens, got %lld", kFunction, Number(a.count),
                    Number(bounds[a.documents]));
  }
  return LG_OK;
}

template <class Token, class Length>
void Run(const lg_pack_labels_args& a) {
  const PackedDocuments<Token, Length> documents(a);
  const auto* bounds = static_cast<const Length*>(a.cu_seqlens);
  std::int64_t seen[kLabelReasons] = {};
  std::int64_t owner = 0;
  for (std::int64_t t = 0; t < a.count; ++t) {
    while (owner < a.documents && bounds[owner + 1] <= t) ++owner;  // documents without a token have no position
    const LabelReason reason = documents.ReasonOf(t, owner);
    a.labels[t] = documents.LabelOf(t, reason);
    ++seen[reason];
  }
  for (int i = 0; a.counts != nullptr && i < kLabelReasons; ++i) a.counts[i] = seen[i];
}

template <class Length>
int RunOnHost(const lg_pack_labels_args& a) {
  if (const int code = CheckLengths<Length>(a); code != LG_OK) return code;
  if (a.token_dtype == LG_INT64) {
    Run<std::int64_t, Length>(a);
  } else {
    Run<std::int32_t, Length>(a);
  }
  return LG_OK;
}

int PackLabels(const lg_pack_labels_args& a) {
  if (const int code = Check(a); code != LG_OK) return code;
  if (DeviceBackend* backend = FindDeviceBackend()) {
    if (backend->DeviceOf(a.cu_seqlens) >= 0) return Guarded(kFunction, kDeviceBookkeeping, [&] { return backend->PackLabels(a); });
    const struct {
      const char* name;
      const void* pointer;
    } arrays[] = {{"tokens", a.tokens}, {"prompt_lengths", a.prompt_lengths}, {"labels", a.labels}, {"counts", a.counts}};
    for (const auto& array : arrays) {
      const int device = array.pointer != nullptr ? backend->DeviceOf(array.pointer) : -1;
      if (device >= 0) return SetError(LG_INVALID_ARGUMENT, "%s: %s: expected host memory, where cu_seqlens is, got device %d", kFunction, array.name, device);
    }
  }
  if (a.stream != nullptr) return SetError(LG_UNIMPLEMENTED, "%s: stream: expected NULL for host memory, got a stream", kFunction);
  return a.length_dtype == LG_INT64 ? RunOnHost<std::int64_t>(a) : RunOnHost<std::int32_t>(a);
}

}  // namespace
}  // namespace lossgauge

extern "C" {

void lg_pack_labels_args_init(lg_pack_labels_args* args) {
  if (args == nullptr) return;
  *args = {};
  args->struct_size = sizeof *args;
  args->token_dtype = args->length_dtype = LG_INT64;
  args->ignore_index = -100;
}

int lg_pack_labels(const lg_pack_labels_args* given) {
  lg_pack_labels_args args;
  lg_pack_labels_args_init(&args);
  if (const int code = lossgauge::ReadStructure(given, lossgauge::kFunction, "lg_pack_labels_args", offsetof(lg_pack_labels_args, stream), &args);
      code != LG_OK)
    return code;
  return lossgauge::PackLabels(args);
}

}  // extern "C"
