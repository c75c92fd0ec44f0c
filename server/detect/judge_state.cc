// Saving and restoring a judge: magic, version, body, checksum.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/detect/judge.h"

namespace lossgauge::detect {
namespace {

constexpr std::uint32_t kMagic = 0x4a44474c;  // "LGDJ"
// Raised with every change of the layout: a state of another version is not converted, the judge warms up anew.
constexpr std::uint32_t kVersion = 11;
constexpr std::size_t kFrameBytes = 4 + 4 + 8;

}  // namespace

std::uint64_t StateChecksum(std::string_view bytes) {
  std::uint64_t hash = lg_ring_mix(bytes.size() + 1);
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = lg_ring_mix(hash ^ word) + 0x9e3779b97f4a7c15u;
  }
  std::uint64_t rest = 0;
  std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
  return lg_ring_mix(hash ^ rest);
}

void Judge::State::Save(StateWriter& out) const {
  out.PutText(attempt);
  out.Put<std::uint8_t>(attempt_has_step);
  out.Put(last_step);
  out.Put(previous_last_step);
  out.Put(last_step_time_ns);
  out.Put(first_seen_ns);
  out.Put(presence_ns);
  out.Put(now_ns);
  out.Put(unreachable_since_ns);
  out.Put(ended_ns);
  out.Put(steps_seen);
  out.PutText(mode);
  out.Put<std::uint8_t>(baseline_lost);
  out.Put<std::uint8_t>(last_step_time_known);
  for (const double rate : learning_rates) out.Put(rate);
  interval.Save(out);
  grad_explosion.Save(out);
  logit_blowup.Save(out);
  tokens.Save(out);
  loss.Save(out);
  level_shift.Save(out);
  nonfinite.Save(out);
  collapse.Save(out);
  normalizer_drift.Save(out);
  integrity.Save(out);
  shards.Save(out);
  accounting.Save(out);
  rank_missing.Save(out);
  rank_outlier.Save(out);
  repeated_batch.Save(out);
  slowdown.Save(out);
  producers.Save(out);
  history.Save(out);
  damage.Save(out);
  book.Save(out, kStateBudgetBytes);
}

void Judge::State::Restore(StateReader& in) {
  attempt = in.GetText(256);
  attempt_has_step = in.GetBool();
  last_step = in.GetStep();
  previous_last_step = in.GetStep();
  last_step_time_ns = in.GetTime();
  first_seen_ns = in.GetTime();
  presence_ns = in.GetTime();
  now_ns = in.GetTime();
  unreachable_since_ns = in.GetTime();
  ended_ns = in.GetTime();
  steps_seen = in.GetStep();
  mode = in.GetText(8);
  if (!mode.empty() && mode != "advise" && mode != "shadow") in.Fail();
  baseline_lost = in.GetBool();
  last_step_time_known = in.GetBool();
  for (double& rate : learning_rates) rate = in.GetFinite();
  interval.Restore(in);
  grad_explosion.Restore(in);
  logit_blowup.Restore(in);
  tokens.Restore(in);
  loss.Restore(in);
  level_shift.Restore(in);
  nonfinite.Restore(in);
  collapse.Restore(in);
  normalizer_drift.Restore(in);
  integrity.Restore(in);
  shards.Restore(in);
  accounting.Restore(in);
  rank_missing.Restore(in);
  rank_outlier.Restore(in);
  repeated_batch.Restore(in);
  slowdown.Restore(in);
  producers.Restore(in);
  history.Restore(in);
  damage.Restore(in);
  book.Restore(in);
}

std::string Judge::Save() const {
  StateWriter out;
  out.Put(kMagic);
  out.Put(kVersion);
  state_.Save(out);
  const std::uint64_t checksum = StateChecksum(out.bytes());
  out.Put(checksum);
  return out.Take();
}

absl::Status Judge::Restore(std::string_view bytes) {
  const auto refuse = [this](absl::Status status) {
    state_ = State(run_);
    state_.baseline_lost = true;
    return status;
  };
  if (bytes.size() < kFrameBytes || bytes.size() > kMaxStateBytes) {
    return refuse(absl::DataLossError(absl::StrCat("judge state of run '", run_, "' has ", bytes.size(), " bytes: truncated or foreign")));
  }
  StateReader frame(bytes);
  const auto magic = frame.Get<std::uint32_t>();
  const auto version = frame.Get<std::uint32_t>();
  if (magic != kMagic) return refuse(absl::DataLossError(absl::StrCat("judge state of run '", run_, "' is no judge state")));
  if (version != kVersion) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("judge state of run '", run_, "' has version ", version, ", this lossgauged reads version ", kVersion)));
  }
  const std::string_view covered = bytes.substr(0, bytes.size() - 8);
  std::uint64_t checksum;
  std::memcpy(&checksum, bytes.data() + covered.size(), 8);
  if (checksum != StateChecksum(covered)) return refuse(absl::DataLossError(absl::StrCat("judge state of run '", run_, "' is damaged (checksum)")));
  StateReader in(covered.substr(8));
  State restored(run_);
  restored.Restore(in);
  if (!in.ok() || !in.AtEnd()) return refuse(absl::DataLossError(absl::StrCat("judge state of run '", run_, "' does not parse")));
  state_ = std::move(restored);
  return absl::OkStatus();
}

}  // namespace lossgauge::detect
