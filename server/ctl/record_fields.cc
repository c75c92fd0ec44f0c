#include "server/ctl/record_fields.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_validate.h"
#include "server/ctl/json_writer.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {
namespace {

#define LG_STEP_FIELD(name, type, present) {#name, offsetof(lg_step_record, name), FieldType::type, present}
#define LG_EVENT_FIELD(name, type) {#name, offsetof(lg_event_record, name), FieldType::type, 0}

constexpr Field kStepFields[] = {
    LG_STEP_FIELD(present, kPresent, 0),
    LG_STEP_FIELD(step, kSigned, 0),
    LG_STEP_FIELD(block, kUnsigned, 0),
    LG_STEP_FIELD(phase, kPhase, 0),
    LG_STEP_FIELD(boot_ns, kSigned, 0),
    LG_STEP_FIELD(wall_ns, kTime, 0),
    LG_STEP_FIELD(micro_batches, kUnsigned, 0),
    LG_STEP_FIELD(tokens, kUnsigned, 0),
    LG_STEP_FIELD(unmasked_tokens, kUnsigned, 0),
    LG_STEP_FIELD(finite_tokens, kUnsigned, 0),
    LG_STEP_FIELD(nonfinite_rows, kUnsigned, 0),
    LG_STEP_FIELD(bad_targets, kUnsigned, 0),
    LG_STEP_FIELD(clamped_rows, kUnsigned, 0),
    LG_STEP_FIELD(nll_sum, kFixed128, LG_HAS_LOSS),
    LG_STEP_FIELD(objective_sum, kFixed128, LG_HAS_OBJECTIVE),
    LG_STEP_FIELD(z_loss_sum, kFixed128, LG_HAS_OBJECTIVE),
    LG_STEP_FIELD(scored_nll_sum, kFixed128, LG_HAS_TARGET_BYTES),
    LG_STEP_FIELD(target_bytes, kUnsigned, LG_HAS_TARGET_BYTES),
    LG_STEP_FIELD(denominator_min, kDouble, LG_HAS_DENOMINATOR),
    LG_STEP_FIELD(denominator_max, kDouble, LG_HAS_DENOMINATOR),
    LG_STEP_FIELD(log_z_sum, kFixed128, LG_HAS_LOGITS),
    LG_STEP_FIELD(log_z_sq_sum, kFixed128, LG_HAS_LOGITS),
    LG_STEP_FIELD(log_z_max, kDouble, LG_HAS_LOGITS),
    LG_STEP_FIELD(max_abs_logit, kDouble, LG_HAS_LOGITS),
    LG_STEP_FIELD(logit_grad_sq_sum, kFixed128, LG_HAS_LOGIT_GRAD),
    LG_STEP_FIELD(nonfinite_grad_rows, kUnsigned, LG_HAS_LOGIT_GRAD),
    LG_STEP_FIELD(hidden_grad_sq_sum, kFixed128, LG_HAS_HIDDEN_GRAD),
    LG_STEP_FIELD(head_grad_sq_sum, kFixed128, LG_HAS_HEAD_GRAD),
    LG_STEP_FIELD(grad_norm, kDouble, LG_HAS_GRAD_NORM),
    LG_STEP_FIELD(probability_mass, kFixed128, LG_HAS_MASS),
    LG_STEP_FIELD(mass_error_rows, kUnsigned, LG_HAS_MASS),
    LG_STEP_FIELD(target_hits, kUnsigned, LG_HAS_LOGITS),
    LG_STEP_FIELD(correct_tokens, kUnsigned, LG_HAS_LOGITS),
    LG_STEP_FIELD(mask_fingerprint, kHex, LG_HAS_LOGITS),
    LG_STEP_FIELD(target_fingerprint, kHex, LG_HAS_LOGITS),
    LG_STEP_FIELD(worst_row_nll, kDouble, LG_HAS_WORST_ROW),
    LG_STEP_FIELD(worst_row_position, kSigned, LG_HAS_WORST_ROW),
    LG_STEP_FIELD(worst_row_target, kSigned, LG_HAS_WORST_ROW),
    LG_STEP_FIELD(worst_logit_position, kSigned, LG_HAS_WORST_LOGIT),
    LG_STEP_FIELD(worst_logit_column, kSigned, LG_HAS_WORST_LOGIT),
    LG_STEP_FIELD(first_nonfinite_row, kSigned, LG_HAS_FIRST_NONFINITE_ROW),
    LG_STEP_FIELD(reported_loss, kDouble, LG_HAS_REPORTED_LOSS),
    LG_STEP_FIELD(reported_loss_auxiliary, kDouble, LG_HAS_REPORTED_LOSS),
    LG_STEP_FIELD(reported_loss_dtype, kDtype, LG_HAS_REPORTED_LOSS),
    LG_STEP_FIELD(reported_loss_interval, kUnsigned, LG_HAS_REPORTED_LOSS),
    LG_STEP_FIELD(learning_rate, kDouble, LG_HAS_LEARNING_RATE),
    LG_STEP_FIELD(exchange_bad_rows, kUnsigned, LG_HAS_EXCHANGE),
    LG_STEP_FIELD(exchange_bad_sender, kUnsigned, LG_HAS_EXCHANGE),
    LG_STEP_FIELD(total_steps, kUnsigned, 0),
    LG_STEP_FIELD(total_tokens, kUnsigned, 0),
    LG_STEP_FIELD(total_unmasked_tokens, kUnsigned, 0),
    LG_STEP_FIELD(total_finite_tokens, kUnsigned, 0),
    LG_STEP_FIELD(total_nonfinite_rows, kUnsigned, 0),
    LG_STEP_FIELD(total_bad_targets, kUnsigned, 0),
    LG_STEP_FIELD(total_target_bytes, kUnsigned, 0),
    LG_STEP_FIELD(total_nonfinite_grad_rows, kUnsigned, 0),
    LG_STEP_FIELD(total_nll_sum, kFixed128, 0),
    LG_STEP_FIELD(total_scored_nll_sum, kFixed128, 0),
    LG_STEP_FIELD(total_z_loss_sum, kFixed128, 0),
    LG_STEP_FIELD(total_correct_tokens, kUnsigned, 0),
    LG_STEP_FIELD(total_clamped_rows, kUnsigned, 0),
    LG_STEP_FIELD(total_mass_error_rows, kUnsigned, 0),
    LG_STEP_FIELD(total_nonfinite_steps, kUnsigned, 0),
};

constexpr Field kEventFields[] = {
    LG_EVENT_FIELD(kind, kEventKind),
    LG_EVENT_FIELD(step, kSigned),
    LG_EVENT_FIELD(boot_ns, kSigned),
    LG_EVENT_FIELD(wall_ns, kTime),
    LG_EVENT_FIELD(phase, kPhase),
    LG_EVENT_FIELD(value, kDouble),
    LG_EVENT_FIELD(count, kUnsigned),
    LG_EVENT_FIELD(text_bytes, kUnsigned),
    LG_EVENT_FIELD(text, kEventText),
};

#undef LG_STEP_FIELD
#undef LG_EVENT_FIELD

// Bit i of `present`.
constexpr const char* kPresentNames[] = {"loss", "logits", "objective", "denominator", "logit_grad", "mass", "hidden_grad", "head_grad",
                                         "grad_norm", "reported_loss", "learning_rate", "target_bytes", "worst_row", "worst_logit",
                                         "first_nonfinite_row", "exchange"};

template <std::size_t kCount>
std::string NameOf(const char* const (&names)[kCount], std::uint64_t value, const char* what) {
  return value < kCount ? std::string(names[value]) : absl::StrCat(what, " ", value);
}

template <class Value>
Value Load(const Field& field, const void* record) {
  Value value;
  std::memcpy(&value, static_cast<const char*>(record) + field.offset, sizeof value);
  return value;
}

std::string PresentText(std::uint64_t present) {
  std::string text;
  for (std::size_t bit = 0; bit < 64; ++bit) {
    if ((present >> bit & 1) == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ",", bit < std::size(kPresentNames) ? std::string(kPresentNames[bit]) : absl::StrCat("bit", bit));
  }
  return text.empty() ? "none" : text;
}

std::string EventKindName(std::uint64_t kind) {
  constexpr const char* kNames[] = {"none", "resume", "checkpoint", "phase_begin", "phase_end", "evaluation", "end", "note"};
  return NameOf(kNames, kind, "kind");
}

std::string TimeText(std::int64_t wall_ns) {
  return wall_ns == 0 ? "-" : absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixNanos(wall_ns), absl::UTCTimeZone());
}

std::string_view EventText(const Field& field, const void* record) {
  return ring::FieldText(static_cast<const char*>(record) + field.offset, LG_EVENT_TEXT_BYTES);
}

}  // namespace

std::span<const Field> StepFields() { return kStepFields; }
std::span<const Field> EventFields() { return kEventFields; }

std::size_t FieldWords(FieldType type) {
  return type == FieldType::kFixed128 ? 2 : type == FieldType::kEventText ? LG_EVENT_TEXT_BYTES / 8 : 1;
}

bool HasField(const Field& field, std::uint64_t present) { return field.present == 0 || (present & field.present) != 0; }

std::string PhaseName(std::uint64_t phase) {
  constexpr const char* kNames[] = {"train", "warm_up", "evaluation", "checkpoint", "data_loading", "other"};
  return NameOf(kNames, phase, "phase");
}

std::string CallName(std::uint64_t call) {
  constexpr const char* kNames[] = {"none", "open", "loss", "publish", "event", "close", "observe"};
  return NameOf(kNames, call, "call");
}

std::string CloseName(std::uint64_t closed) {
  constexpr const char* kNames[] = {"open", "finished", "failed"};
  return NameOf(kNames, closed, "closed");
}

std::string FieldText(const Field& field, const void* record) {
  switch (field.type) {
    case FieldType::kUnsigned: return absl::StrCat(Load<std::uint64_t>(field, record));
    case FieldType::kSigned: return absl::StrCat(Load<std::int64_t>(field, record));
    case FieldType::kDouble: return absl::StrFormat("%.12g", Load<double>(field, record));
    case FieldType::kFixed128: return absl::StrFormat("%.12g", lg_fixed128_to_double(Load<lg_fixed128>(field, record)));
    case FieldType::kHex: return absl::StrFormat("0x%016x", Load<std::uint64_t>(field, record));
    case FieldType::kTime: return TimeText(Load<std::int64_t>(field, record));
    case FieldType::kPhase: return PhaseName(Load<std::uint64_t>(field, record));
    case FieldType::kEventKind: return EventKindName(Load<std::uint64_t>(field, record));
    case FieldType::kPresent: return PresentText(Load<std::uint64_t>(field, record));
    case FieldType::kEventText: return absl::StrCat("\"", Printable(EventText(field, record)), "\"");
    case FieldType::kDtype: {
      constexpr const char* kNames[] = {"fp32", "bf16", "fp16", "fp64"};
      return NameOf(kNames, Load<std::uint64_t>(field, record), "dtype");
    }
  }
  return "?";
}

std::string FieldJson(const Field& field, const void* record) {
  switch (field.type) {
    case FieldType::kDouble: return JsonNumber(Load<double>(field, record));
    case FieldType::kFixed128: return JsonNumber(lg_fixed128_to_double(Load<lg_fixed128>(field, record)));
    case FieldType::kTime: return absl::StrCat("\"", Load<std::int64_t>(field, record), "\"");
    case FieldType::kEventText: return JsonText(EventText(field, record));
    default: return JsonText(FieldText(field, record));
  }
}

}  // namespace lossgauge::ctl
