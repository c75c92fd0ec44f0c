#include "server/detect/normalizer_drift.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace lossgauge::detect {
namespace {

constexpr IncidentBook::Slot kSlot{state::Condition::kNormalizerDrift};
constexpr double kBlockDeviations = 3;

}  // namespace

void NormalizerDriftDetector::CloseBlock() {
  Block& block = blocks_[static_cast<std::size_t>(next_)];
  block.first_step = first_step_;
  block.mean_nats = mean_nats_;
  block.deviation_nats = std::sqrt(std::max(0.0, squares_) / (kBlockSteps - 1) / kBlockSteps);
  next_ = (next_ + 1) % kBlocks;
  size_ = std::min(size_ + 1, kBlocks);
  in_block_ = 0;
}

bool NormalizerDriftDetector::Drifts(const Policy& policy) const {
  if (size_ < kBlocks) return false;
  const double now = Back(0).mean_nats;
  const double sign = now < 0 ? -1 : 1;
  if (sign * (now - Back(kBlocks - 1).mean_nats) < policy.drift_floor_nats) return false;
  int away = 0;
  for (int i = 0; i + 1 < kBlocks; ++i) {
    const double move = sign * (Back(i).mean_nats - Back(i + 1).mean_nats);
    if (move > 0) ++away;
    if (move < -kBlockDeviations * std::hypot(Back(i).deviation_nats, Back(i + 1).deviation_nats)) return false;
  }
  return away >= kBlocks - 2;
}

void NormalizerDriftDetector::OnStep(const StepSignals& signals, const Policy& policy, IncidentBook& book) {
  const state::StepSummary& summary = signals.joined->summary;
  if (!summary.log_z_mean_nats || !std::isfinite(*summary.log_z_mean_nats)) return;
  const double value = std::clamp(*summary.log_z_mean_nats, -1e30, 1e30);
  if (in_block_ == 0) {
    first_step_ = signals.moment.step;
    mean_nats_ = squares_ = 0;
    z_loss_ = false;
  }
  z_loss_ = z_loss_ || (summary.z_loss_nats && *summary.z_loss_nats > 0);
  ++in_block_;
  const double off = value - mean_nats_;
  mean_nats_ += off / in_block_;
  squares_ += off * (value - mean_nats_);
  if (in_block_ < kBlockSteps) return;
  CloseBlock();

  if (Drifts(policy)) {
    if (!open_) {
      open_ = true;
      onset_step_ = Back(kBlocks - 1).first_step;
      onset_nats_ = Back(kBlocks - 1).mean_nats;
    }
    ReportTo(book, signals, policy);
  } else if (open_ && std::fabs(Back(0).mean_nats) < std::fabs(Back(4).mean_nats) + 0.25 * policy.drift_floor_nats) {
    book.Resolve(kSlot, signals.moment);  // four blocks without a move to speak of
    open_ = false;
  } else if (open_) {
    ReportTo(book, signals, policy);
  }
}

void NormalizerDriftDetector::ReportTo(IncidentBook& book, const StepSignals& signals, const Policy& policy) const {
  const double now = Back(0).mean_nats;
  const double span = static_cast<double>(signals.moment.step - onset_step_ + 1);
  Finding finding;
  finding.condition = state::Condition::kNormalizerDrift;
  const bool beyond = std::fabs(now) >= policy.drift_limit_nats;
  finding.severity = beyond || z_loss_ ? state::Severity::kWarning : state::Severity::kInfo;
  finding.onset_step = onset_step_;
  finding.peak_step = signals.moment.step;
  finding.summary = absl::StrFormat("log Z has drifted from %.2f to %.2f nats since step %d: ", onset_nats_, now, onset_step_) +
                    (z_loss_  ? "the z-loss does not hold it; check its weight, and the learning rate of the head"
                     : beyond ? "16-bit logits are coarse out there though the loss does not show it; a small z-loss (1e-4) brings it back"
                              : "no harm yet; a small z-loss would hold it");
  finding.evidence = {{"log_z_now", now, "nats", ""},
                      {"log_z_at_onset", onset_nats_, "nats", ""},
                      {"drift_per_1000_steps", 1000 * (now - onset_nats_) / span, "nats", ""},
                      {"limit", policy.drift_limit_nats, "nats", ""}};
  if (signals.loss) finding.evidence.push_back({"loss", *signals.loss, "nats", ""});
  if (signals.max_abs_logit) finding.evidence.push_back({"max_abs_logit", *signals.max_abs_logit, "", ""});
  book.Report(kSlot, std::move(finding), signals.moment);
}

void NormalizerDriftDetector::Save(StateWriter& out) const {
  out.Put(static_cast<std::uint8_t>(size_));
  for (int i = size_ - 1; i >= 0; --i) {
    out.Put(Back(i).first_step);
    out.Put(Back(i).mean_nats);
    out.Put(Back(i).deviation_nats);
  }
  out.Put(in_block_);
  out.Put(first_step_);
  out.Put(mean_nats_);
  out.Put(squares_);
  out.Put<std::uint8_t>(z_loss_);
  out.Put<std::uint8_t>(open_);
  out.Put(onset_step_);
  out.Put(onset_nats_);
}

void NormalizerDriftDetector::Restore(StateReader& in) {
  size_ = in.GetIn<std::uint8_t>(0, kBlocks);
  for (int i = 0; i < size_; ++i) {
    Block& block = blocks_[static_cast<std::size_t>(i)];
    block.first_step = in.GetStep();
    block.mean_nats = in.GetFinite();
    block.deviation_nats = in.GetFinite();
  }
  next_ = size_ % kBlocks;
  in_block_ = in.GetIn<std::int32_t>(0, kBlockSteps - 1);
  first_step_ = in.GetStep();
  mean_nats_ = in.GetFinite();
  squares_ = in.GetFinite();
  z_loss_ = in.GetBool();
  open_ = in.GetBool();
  onset_step_ = in.GetStep();
  onset_nats_ = in.GetFinite();
}

}  // namespace lossgauge::detect
