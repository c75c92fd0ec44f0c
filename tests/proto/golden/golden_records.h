// What the golden bytes of ABI 1.0 hold. Every field has a value of its own, so a field that moves is seen.
#ifndef LOSSGAUGE_TESTS_PROTO_GOLDEN_GOLDEN_RECORDS_H_
#define LOSSGAUGE_TESTS_PROTO_GOLDEN_GOLDEN_RECORDS_H_

#include <cstring>

#include "proto/lossgauge/ring/ring_abi.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge::ring {

inline lg_ring_identity GoldenIdentity(std::uint32_t kind) {
  lg_ring_identity id{};
  SetFormat(&id, kind);
  id.slot_count = 4;
  id.segment_id[0] = UINT64_C(0x0123456789abcdef);
  id.segment_id[1] = UINT64_C(0xfedcba9876543210);
  id.boot_id[0] = 11;
  id.boot_id[1] = 12;
  id.created_boot_ns = 13;
  id.created_wall_ns = 1700000000000000000;
  id.attempt_start_wall_ns = 1700000000000000001;
  id.producer_pid = 4242;
  id.producer_uid = 1000;
  id.layout = {8, 3, {2, 1}, {2, 1}, {2, 0}, {1, 0}, {1, 0}, 1, LG_GRADIENT_REDUCTION_MEAN, 16000, 16257, 32257};
  id.label_smoothing = 0.125;
  id.z_loss_weight = 0.0001;
  std::strcpy(id.run, "golden \xc3\xbc" "bung");
  std::strcpy(id.attempt, "job-7-0");
  std::strcpy(id.block_names[0], "train");
  std::strcpy(id.block_names[1], "eval");
  return id;
}

inline lg_step_record GoldenStep(std::uint64_t n) {
  lg_step_record r{};
  r.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_GRAD_NORM;
  r.step = static_cast<std::int64_t>(100 + n);
  r.block = n % 2;
  r.phase = LG_PHASE_CHECKPOINT;
  r.boot_ns = 5;
  r.wall_ns = 6;
  r.micro_batches = 7;
  r.tokens = 80;
  r.unmasked_tokens = 79;
  r.finite_tokens = 77;
  r.nonfinite_rows = 2;
  r.bad_targets = 12;
  r.clamped_rows = 13;
  r.nll_sum = {14, -15};
  r.objective_sum = {16, 17};
  r.z_loss_sum = {18, 19};
  r.scored_nll_sum = {20, 21};
  r.target_bytes = 22;
  r.denominator_min = 23.5;
  r.denominator_max = 24.5;
  r.log_z_sum = {25, 26};
  r.log_z_sq_sum = {27, 28};
  r.log_z_max = 29.5;
  r.max_abs_logit = 30.5;
  r.logit_grad_sq_sum = {31, 32};
  r.nonfinite_grad_rows = 33;
  r.hidden_grad_sq_sum = {34, 35};
  r.head_grad_sq_sum = {36, 37};
  r.grad_norm = 38.5;
  r.probability_mass = {39, 40};
  r.mass_error_rows = 41;
  r.target_hits = 42;
  r.correct_tokens = 43;
  r.mask_fingerprint = 44;
  r.target_fingerprint = 45;
  r.worst_row_nll = 46.5;
  r.worst_row_position = 47;
  r.worst_row_target = 48;
  r.worst_logit_position = 49;
  r.worst_logit_column = 50;
  r.first_nonfinite_row = 51;
  r.reported_loss = 52.5;
  r.reported_loss_auxiliary = 53.5;
  r.reported_loss_dtype = LG_DTYPE_FP16;
  r.reported_loss_interval = 55;
  r.learning_rate = 56.5;
  r.exchange_bad_rows = 57;
  r.exchange_bad_sender = 58;
  r.total_steps = 59;
  r.total_tokens = 600;
  r.total_unmasked_tokens = 610;
  r.total_finite_tokens = 62;
  r.total_nonfinite_rows = 63;
  r.total_bad_targets = 64;
  r.total_target_bytes = 65;
  r.total_nonfinite_grad_rows = 66;
  r.total_nll_sum = {67, 68};
  r.total_scored_nll_sum = {69, 70};
  r.total_z_loss_sum = {71, 72};
  r.total_correct_tokens = 73;
  r.total_clamped_rows = 74;
  r.total_mass_error_rows = 75;
  r.total_nonfinite_steps = 76;
  return r;
}

inline lg_event_record GoldenEvent(std::uint64_t n) {
  lg_event_record e{};
  e.kind = LG_EVENT_CHECKPOINT;
  e.step = static_cast<std::int64_t>(200 + n);
  e.boot_ns = 3;
  e.wall_ns = 4;
  e.phase = LG_PHASE_EVALUATION;
  e.value = 6.5;
  e.count = 7;
  std::strcpy(e.text, "/checkpoints/step-200");
  e.text_bytes = std::strlen(e.text);
  return e;
}

constexpr std::uint64_t kGoldenPublications = 6;  // in 4 slots: the first two were overwritten

}  // namespace lossgauge::ring

#endif  // LOSSGAUGE_TESTS_PROTO_GOLDEN_GOLDEN_RECORDS_H_
