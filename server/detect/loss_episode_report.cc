// What an episode of the loss says of itself, and its saved state.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/detect/loss_episode.h"
#include "server/state/kinds.h"

namespace lossgauge::detect {
namespace {

using state::Condition;
using state::Severity;

}  // namespace

void LossEpisode::ReportTo(IncidentBook& book, const StepSignals& signals, double limit, const Policy& policy) const {
  Finding finding;
  finding.kind = diverging_ ? std::string() : std::string(state::kSpikeCauses[cause_]);
  finding.onset_step = onset_step_;
  finding.peak_step = peak_step_;
  finding.rank = cause_rank_;
  const double now = *signals.loss;
  if (diverging_) {
    finding.condition = Condition::kDivergence;
    finding.severity = critical_ ? Severity::kCritical : Severity::kWarning;
    finding.summary =
        critical_ ? absl::StrFormat("Loss left its course at step %d (%.3f nats) and did not come back in %d steps: %.3f now, peak %.3f",
                                    onset_step_, center(), points_, now, peak_nats_)
        : clean_ > 0
            ? absl::StrFormat("Loss climbed at step %d without a pause, from %.3f to %.3f nats; recovering, %d clean steps", onset_step_, center(), peak_nats_, clean_)
                  : absl::StrFormat("Loss is climbing since step %d without a pause: %.3f nats from %.3f; critical after %d steps",
                                    onset_step_, now, center(), static_cast<int>(policy.loss_rising_steps));
  } else if (spike_) {
    finding.condition = Condition::kLossSpike;
    finding.summary = absl::StrFormat("Loss spike at step %d: %.3f nats, +%.3f over its course; %s", onset_step_, peak_nats_,
                                      peak_residual_, cause_words_);
    if (clean_ > 0) absl::StrAppend(&finding.summary, "; recovering, ", clean_, " clean steps");
  } else {
    finding.condition = Condition::kBlip;
    finding.severity = Severity::kInfo;
    finding.summary =
        absl::StrFormat("Single high loss at step %d: %.3f nats, +%.3f over its course", onset_step_, peak_nats_, peak_residual_);
  }
  // Places and causes are those of the peak, not of the newest step.
  if (signals.moment.step != peak_step_) {
    if (const state::Incident* open = book.FindOpen(kSlot); open != nullptr) {
      finding.evidence = open->evidence;
    }
  }
  if (finding.evidence.empty() || signals.moment.step == peak_step_) {
    finding.evidence = {{"expected_loss", center(), "nats", ""}, {"peak_loss", peak_nats_, "nats", ""},
                        {"excess", peak_residual_, "nats", ""}, {"threshold", limit, "nats", ""}};
    AddPlaces(signals, finding.evidence);
    finding.evidence.push_back({"area", 0, "nats", ""});
    finding.evidence.push_back({"loss_now", now, "nats", ""});
  }
  for (state::Evidence& item : finding.evidence) {
    if (item.name == "area") item.value = area_nats_;
    if (item.name == "loss_now") item.value = now;
  }
  book.Report(kSlot, std::move(finding), signals.moment);
}

void LossEpisode::Save(StateWriter& out) const {
  baseline_.Save(out);
  recent_.Save(out);
  records_.Save(out);
  trail_.Save(out);
  out.Put(rewind_slack_nats_);
  out.Put(drops_);
  out.Put(seen_);
  for (const std::int64_t at : odd_at_) out.Put(at);
  out.Put<std::uint8_t>(flagged_);
  out.Put<std::uint8_t>(open_);
  out.Put<std::uint8_t>(spike_);
  out.Put<std::uint8_t>(diverging_);
  out.Put<std::uint8_t>(critical_);
  out.PutOptional(reference_);
  out.Put<std::uint8_t>(with_gradient_);
  out.Put(onset_step_);
  out.Put(peak_step_);
  out.Put(last_high_step_);
  out.Put(peak_nats_);
  out.Put(first_residual_);
  out.Put(peak_residual_);
  out.Put(area_nats_);
  out.Put(points_);
  out.Put(high_);
  out.Put(high_mask_);
  out.Put(clean_);
  out.Put(hopeless_);
  out.Put(cause_);
  out.PutOptional(cause_rank_);
  out.PutText(cause_words_);
}

void LossEpisode::Restore(StateReader& in) {
  constexpr std::int32_t kMax = 1 << 30;
  baseline_.Restore(in);
  recent_.Restore(in);
  records_.Restore(in);
  trail_.Restore(in);
  rewind_slack_nats_ = in.GetFinite();
  drops_ = in.GetIn<std::int32_t>(0, kMax);
  seen_ = in.GetStep();
  for (std::int64_t& at : odd_at_) at = in.GetStep();
  flagged_ = in.GetBool();
  open_ = in.GetBool();
  spike_ = in.GetBool();
  diverging_ = in.GetBool();
  critical_ = in.GetBool();
  if (in.GetBool()) reference_ = in.GetFinite();
  with_gradient_ = in.GetBool();
  onset_step_ = in.GetStep();
  peak_step_ = in.GetStep();
  last_high_step_ = in.GetStep();
  peak_nats_ = in.GetFinite();
  first_residual_ = in.GetFinite();
  peak_residual_ = in.GetFinite();
  area_nats_ = in.GetFinite();
  points_ = in.GetIn<std::int32_t>(0, kMax);
  high_ = in.GetIn<std::int32_t>(0, kMax);
  high_mask_ = in.Get<std::uint32_t>();
  clean_ = in.GetIn<std::int32_t>(0, kMax);
  hopeless_ = in.GetIn<std::int32_t>(0, kMax);
  cause_ = in.GetIn<std::uint8_t>(0, state::kSpikeCauses.size() - 1);
  cause_rank_ = in.GetOptional<std::uint32_t>();
  cause_words_ = in.GetText(1024);
}

}  // namespace lossgauge::detect
