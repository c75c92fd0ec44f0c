#include "server/state/history_codec.h"

#include <array>

#include "server/state/byte_codec.h"
#include "server/state/step_values.h"

namespace lossgauge::state {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kThinnedVersion = 2;  // a ThinnedSpan follows
constexpr std::uint64_t kSpreadVersion = 3;   // a RankSpread follows

using CountField = std::uint64_t StepSummary::*;
constexpr std::array<CountField, 8> kCounts = {
    &StepSummary::tokens,      &StepSummary::unmasked_tokens, &StepSummary::finite_tokens, &StepSummary::nonfinite_rows,
    &StepSummary::nonfinite_grad_rows, &StepSummary::bad_targets, &StepSummary::micro_batches, &StepSummary::target_bytes,
};

using PlaceField = std::optional<Place> StepSummary::*;
constexpr std::array<PlaceField, 3> kPlaces = {&StepSummary::worst_row, &StepSummary::worst_logit, &StepSummary::first_nonfinite_row};

using RankField = std::optional<double> RankSummary::*;
constexpr std::array<RankField, 3> kRankOptionals = {&RankSummary::loss_nats, &RankSummary::grad_norm, &RankSummary::max_abs_logit};

// A bit for each that is present, then those.
template <typename Get>
void PutOptionals(ByteWriter& out, std::size_t count, const Get& get) {
  std::uint64_t present = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (get(i)) present |= std::uint64_t{1} << i;
  }
  out.U64(present);
  for (std::size_t i = 0; i < count; ++i) {
    if (get(i)) out.F64(*get(i));
  }
}

template <typename Get>
void GetOptionals(ByteReader& in, std::size_t count, const Get& get) {
  const std::uint64_t present = in.U64();
  for (std::size_t i = 0; i < count; ++i) {
    if (present >> i & 1) get(i) = in.F64();
  }
}

constexpr std::array<ValueSpread RankSpread::*, 4> kSpreads = {&RankSpread::loss_nats, &RankSpread::grad_norm, &RankSpread::max_abs_logit,
                                                                &RankSpread::unmasked_tokens};

void PutSpread(ByteWriter& out, const RankSpread& spread) {
  out.U64(spread.ranks);
  for (const auto member : kSpreads) {
    const ValueSpread& value = spread.*member;
    out.U64(value.ranks);
    if (value.ranks == 0) continue;
    for (const double number : {value.min, value.mean, value.max}) out.F64(number);
    out.U64(value.min_rank);
    out.U64(value.max_rank);
  }
}

std::shared_ptr<const RankSpread> GetSpread(ByteReader& in) {
  auto spread = std::make_shared<RankSpread>();
  spread->ranks = in.U64();
  for (const auto member : kSpreads) {
    ValueSpread& value = (*spread).*member;
    value.ranks = in.U64();
    if (value.ranks == 0) continue;
    for (double* number : {&value.min, &value.mean, &value.max}) *number = in.F64();
    value.min_rank = static_cast<std::uint32_t>(in.U64());
    value.max_rank = static_cast<std::uint32_t>(in.U64());
  }
  return spread;
}

void PutSpan(ByteWriter& out, const ThinnedSpan& span) {
  out.U64(span.steps);
  out.I64(span.first_step);
  out.U64(span.first_sequence);
  out.I64(span.first_receive_time_ns);
  out.U64(span.nonfinite_steps);
  for (const auto* bound : {&span.min, &span.max}) PutOptionals(out, kStepValueCount, [&](std::size_t i) { return (*bound)[i]; });
}

std::shared_ptr<const ThinnedSpan> GetSpan(ByteReader& in) {
  auto span = std::make_shared<ThinnedSpan>();
  span->steps = in.U64();
  span->first_step = in.I64();
  span->first_sequence = in.U64();
  span->first_receive_time_ns = in.I64();
  span->nonfinite_steps = in.U64();
  for (auto* bound : {&span->min, &span->max}) {
    GetOptionals(in, kStepValueCount, [&](std::size_t i) -> std::optional<double>& { return (*bound)[i]; });
  }
  return span;
}

}  // namespace

std::string EncodeStep(const StepSummary& step) {
  ByteWriter out;
  out.U64(step.thinned ? kThinnedVersion : step.spread ? kSpreadVersion : kVersion);
  out.U64(step.sequence);
  out.String(step.attempt);
  out.I64(step.step);
  out.I64(step.receive_time_ns);
  out.I64(step.publish_time_ns);
  out.U64(step.ranks);
  out.U64(step.missing_ranks.size());
  for (const auto rank : step.missing_ranks) out.U64(rank);
  out.Bool(step.complete);
  PutOptionals(out, kStepValueCount, [&](std::size_t i) { return step.*kStepValues[i].member; });
  for (const auto field : kCounts) out.U64(step.*field);
  out.Fixed64(step.target_fingerprint);
  out.Fixed64(step.mask_fingerprint);
  for (const auto field : kPlaces) {
    const auto& place = step.*field;
    out.Bool(place.has_value());
    if (!place) continue;
    out.U64(place->rank);
    out.I64(place->position);
    out.I64(place->token);
    out.F64(place->value);
  }
  out.U64(step.rank_steps.size());
  for (const auto& rank : step.rank_steps) {
    out.U64(rank.rank);
    PutOptionals(out, kRankOptionals.size(), [&](std::size_t i) { return rank.*kRankOptionals[i]; });
    out.U64(rank.unmasked_tokens);
    out.U64(rank.nonfinite_rows);
    out.U64(rank.lost_before);
  }
  if (step.thinned) {
    PutSpan(out, *step.thinned);
  } else if (step.spread) {
    PutSpread(out, *step.spread);
  }
  return out.Take();
}

std::string PeekStepAttempt(std::string_view bytes) {
  ByteReader in(bytes);
  in.U64();
  in.U64();
  return in.String();
}

std::optional<StepSummary> DecodeStep(std::string_view bytes, bool with_ranks) {
  ByteReader in(bytes);
  const std::uint64_t version = in.U64();
  if (version < kVersion || version > kSpreadVersion) return std::nullopt;
  StepSummary step;
  step.sequence = in.U64();
  step.attempt = in.String();
  step.step = in.I64();
  step.receive_time_ns = in.I64();
  step.publish_time_ns = in.I64();
  step.ranks = static_cast<std::uint32_t>(in.U64());
  step.missing_ranks.resize(in.Count());
  for (auto& rank : step.missing_ranks) rank = static_cast<std::uint32_t>(in.U64());
  step.complete = in.Bool();
  GetOptionals(in, kStepValueCount, [&](std::size_t i) -> std::optional<double>& { return step.*kStepValues[i].member; });
  for (const auto field : kCounts) step.*field = in.U64();
  step.target_fingerprint = in.Fixed64();
  step.mask_fingerprint = in.Fixed64();
  for (const auto field : kPlaces) {
    if (!in.Bool()) continue;
    Place place;
    place.rank = static_cast<std::uint32_t>(in.U64());
    place.position = in.I64();
    place.token = in.I64();
    place.value = in.F64();
    step.*field = place;
  }
  // Thinned rows have none.
  if (!with_ranks && version != kThinnedVersion) return in.ok() ? std::optional(std::move(step)) : std::nullopt;
  const std::size_t ranks = in.Count();
  for (std::size_t i = 0; i < ranks && in.ok(); ++i) {
    RankSummary& rank = step.rank_steps.emplace_back();
    rank.rank = static_cast<std::uint32_t>(in.U64());
    GetOptionals(in, kRankOptionals.size(), [&](std::size_t k) -> std::optional<double>& { return rank.*kRankOptionals[k]; });
    rank.unmasked_tokens = in.U64();
    rank.nonfinite_rows = in.U64();
    rank.lost_before = in.U64();
  }
  if (version == kThinnedVersion) step.thinned = GetSpan(in);
  if (version == kSpreadVersion) step.spread = GetSpread(in);
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return step;
}

}  // namespace lossgauge::state
