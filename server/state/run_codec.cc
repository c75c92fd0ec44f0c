#include "server/state/run_codec.h"

#include <algorithm>
#include <utility>

#include "server/state/byte_codec.h"
#include "server/state/history_codec.h"
#include "server/state/rank_progress.h"

namespace lossgauge::state {
namespace {

// 1: attempts without declared name and generation; 2: without comparison; 3: without what it could not compare; 4: without cursors, and with
// fewer reasons of a loss; 5: without stumbles.
constexpr std::uint64_t kRunVersion = 6;
constexpr std::uint64_t kSlotVersion = 2;  // 1: with fewer reasons of a loss
constexpr std::size_t kFewerLossReasons = 4;

template <class Value, class Write>
void WriteOptional(const std::optional<Value>& value, ByteWriter* w, Write write) {
  w->Bool(value.has_value());
  if (value) write(*value);
}

void WriteOptionalI64(const std::optional<std::int64_t>& value, ByteWriter* w) {
  WriteOptional(value, w, [w](std::int64_t v) { w->I64(v); });
}
std::optional<std::int64_t> ReadOptionalI64(ByteReader* r) {
  if (!r->Bool()) return std::nullopt;
  return r->I64();
}

void WriteComparison(const AttemptComparison& c, ByteWriter* w) {
  w->String(c.with_attempt);
  w->I64(c.first_step);
  w->I64(c.last_step);
  w->U64(c.steps);
  w->U64(static_cast<std::uint64_t>(c.loss));
  WriteOptionalI64(c.first_unequal_step, w);
  WriteOptionalI64(c.diverged_step, w);
  w->F64(c.mean_difference_nats);
  w->F64(c.largest_difference_nats);
  w->I64(c.largest_difference_step);
  w->F64(c.noise_nats);
  w->U64(static_cast<std::uint64_t>(c.data));
  WriteOptionalI64(c.first_different_data_step, w);
  w->I64(c.data_offset_steps);
  WriteOptionalI64(c.nonfinite_step, w);
  w->U64(c.not_compared);
  WriteOptionalI64(c.first_not_compared_step, w);
  WriteOptionalI64(c.last_not_compared_step, w);
}
AttemptComparison ReadComparison(std::uint64_t version, ByteReader* r) {
  AttemptComparison c;
  c.with_attempt = r->String();
  c.first_step = r->I64();
  c.last_step = r->I64();
  c.steps = r->U64();
  c.loss = static_cast<LossMatch>(std::min(r->U64(), static_cast<std::uint64_t>(LossMatch::kUnknown)));
  c.first_unequal_step = ReadOptionalI64(r);
  c.diverged_step = ReadOptionalI64(r);
  c.mean_difference_nats = r->F64();
  c.largest_difference_nats = r->F64();
  c.largest_difference_step = r->I64();
  c.noise_nats = r->F64();
  c.data = static_cast<DataMatch>(std::min(r->U64(), static_cast<std::uint64_t>(DataMatch::kDifferent)));
  c.first_different_data_step = ReadOptionalI64(r);
  c.data_offset_steps = r->I64();
  if (version < 4) return c;
  c.nonfinite_step = ReadOptionalI64(r);
  c.not_compared = r->U64();
  c.first_not_compared_step = ReadOptionalI64(r);
  c.last_not_compared_step = ReadOptionalI64(r);
  return c;
}

void WriteAxis(const lg_axis& axis, ByteWriter* w) {
  w->U64(axis.size);
  w->U64(axis.index);
}
lg_axis ReadAxis(ByteReader* r) {
  lg_axis axis;
  axis.size = static_cast<std::uint32_t>(r->U64());
  axis.index = static_cast<std::uint32_t>(r->U64());
  return axis;
}

void WriteInfo(const ProducerInfo& info, ByteWriter* w) {
  w->Fixed64(info.segment.words[0]);
  w->Fixed64(info.segment.words[1]);
  w->I64(info.attempt_start_ns);
  const lg_layout& l = info.layout;
  w->U64(l.world_size);
  w->U64(l.rank);
  for (const lg_axis* axis : {&l.dp, &l.tp, &l.pp, &l.cp, &l.ep}) WriteAxis(*axis, w);
  w->U64(l.has_loss);
  w->U64(l.gradient_reduction);
  w->I64(l.shard_offset);
  w->I64(l.shard_columns);
  w->I64(l.vocab_size);
  w->F64(info.label_smoothing);
  w->F64(info.z_loss_weight);
  for (const std::string& name : info.block_names) w->String(name);
  w->String(info.ring_path);
}

ProducerInfo ReadInfo(const std::string& run, const std::string& attempt, ByteReader* r) {
  ProducerInfo info;
  info.run = run;
  info.attempt = attempt;
  info.segment.words[0] = r->Fixed64();
  info.segment.words[1] = r->Fixed64();
  info.attempt_start_ns = r->I64();
  lg_layout& l = info.layout;
  l.world_size = static_cast<std::uint32_t>(r->U64());
  l.rank = static_cast<std::uint32_t>(r->U64());
  for (lg_axis* axis : {&l.dp, &l.tp, &l.pp, &l.cp, &l.ep}) *axis = ReadAxis(r);
  l.has_loss = static_cast<std::uint32_t>(r->U64());
  l.gradient_reduction = static_cast<std::uint32_t>(r->U64());
  l.shard_offset = r->I64();
  l.shard_columns = r->I64();
  l.vocab_size = r->I64();
  info.label_smoothing = r->F64();
  info.z_loss_weight = r->F64();
  for (std::string& name : info.block_names) name = r->String();
  info.ring_path = r->String();
  return info;
}

void WriteLiveness(const LivenessReport& report, ByteWriter* w) {
  w->U64(static_cast<std::uint64_t>(report.producer_state));
  w->U64(report.closed);
  w->I64(report.enqueued_step);
  w->I64(report.published_step);
  w->I64(report.entered_step);
  w->U64(report.last_call);
  w->U64(report.phase);
  w->Bool(report.drained);
  w->I64(report.time_ns);
}

LivenessReport ReadLiveness(ByteReader* r) {
  LivenessReport report;
  report.producer_state = static_cast<ProducerState>(std::min<std::uint64_t>(r->U64(), static_cast<std::uint64_t>(ProducerState::kEnded)));
  report.closed = r->U64();
  report.enqueued_step = r->I64();
  report.published_step = r->I64();
  report.entered_step = r->I64();
  report.last_call = r->U64();
  report.phase = r->U64();
  report.drained = r->Bool();
  report.time_ns = r->I64();
  return report;
}

}  // namespace

std::string RunCodec::Encode(const Run& run) {
  ByteWriter w;
  w.U64(kRunVersion);
  w.U64(run.next_sequence_);
  w.U64(run.verdict_changes_);
  w.Bool(run.has_verdict_);
  if (run.has_verdict_) w.String(EncodeVerdict(run.verdict_));
  WriteOptional(run.last_checkpoint_, &w, [&w](const ResumePoint& point) {
    w.I64(point.step);
    w.String(point.path);
  });
  WriteOptional(run.evaluation_loss_nats_, &w, [&w](double value) { w.F64(value); });
  WriteOptionalI64(run.evaluation_step_, &w);
  w.Bool(run.ended_);
  w.Bool(run.failed_);
  w.I64(run.first_seen_ns_);
  w.I64(run.ended_time_ns_);
  WriteTotals(run.totals_, &w);
  w.U64(run.rank_totals_.size());
  for (const auto& [rank, totals] : run.rank_totals_) {
    w.U64(rank);
    WriteTotals(totals, &w);
  }
  w.U64(run.attempts_.size());
  for (const auto& attempt : run.attempts_) {
    w.String(attempt->view_.attempt);
    w.String(attempt->declared_);
    w.U64(attempt->generation_);
    w.I64(attempt->view_.start_time_ns);
    w.I64(attempt->view_.first_step);
    w.I64(attempt->view_.last_step);
    w.U64(attempt->view_.steps);
    WriteOptionalI64(attempt->view_.resumed_after_step, &w);
    WriteOptional(attempt->view_.comparison, &w, [&w](const AttemptComparison& comparison) { WriteComparison(comparison, &w); });
    w.I64(attempt->first_seen_ns_);
    WriteOptionalI64(attempt->last_joined_, &w);
    w.I64(attempt->last_boot_ns_);
    w.I64(attempt->last_wall_ns_);
    w.I64(attempt->last_step_time_ns_);
    w.U64(attempt->ranks_.size());
    for (const auto& [rank, state] : attempt->ranks_) {
      WriteInfo(*state.slot->info, &w);
      w.Bool(state.slot->has_liveness);
      WriteLiveness(state.slot->liveness, &w);
      w.I64(state.last_record_time_ns);
      w.Bool(run.options_.is_forwarded);
      if (!run.options_.is_forwarded) continue;
      w.U64(state.slot->settled_steps);
      w.U64(state.slot->settled_events);
      w.U64(state.slot->counted_steps);
      w.U64(state.slot->counted_events);
      WriteTotals(state.slot->seen, &w);
    }
  }
  w.U64(run.stumbles_.newest().size());
  for (const Stumble& stumble : run.stumbles_.newest()) {
    w.String(stumble.incident_id);
    w.I64(stumble.step);
    w.Fixed64(stumble.target_fingerprint);
    w.U64(stumble.unmasked_tokens);
  }
  return w.Take();
}

bool RunCodec::Decode(std::string_view bytes, Run* run, TimeNs now_ns) {
  ByteReader r(bytes);
  const std::uint64_t version = r.U64();
  if (version < 1 || version > kRunVersion) return false;
  Run fresh(run->name_, nullptr, run->options_, now_ns);
  fresh.next_sequence_ = r.U64();
  fresh.verdict_changes_ = r.U64();
  fresh.has_verdict_ = r.Bool();
  if (fresh.has_verdict_) {
    const auto verdict = DecodeVerdict(r.String());
    if (!verdict) return false;
    fresh.verdict_ = *verdict;
  }
  if (r.Bool()) {
    ResumePoint point;
    point.step = r.I64();
    point.path = r.String();
    fresh.last_checkpoint_ = std::move(point);
  }
  if (r.Bool()) fresh.evaluation_loss_nats_ = r.F64();
  fresh.evaluation_step_ = ReadOptionalI64(&r);
  fresh.ended_ = r.Bool();
  fresh.failed_ = r.Bool();
  fresh.first_seen_ns_ = r.I64();
  fresh.ended_time_ns_ = r.I64();
  const std::size_t reasons = version >= 5 ? static_cast<std::size_t>(LossReason::kCount) : kFewerLossReasons;
  fresh.totals_ = ReadTotals(&r, reasons);
  for (std::size_t n = r.Count(); n > 0 && r.ok(); --n) {
    const auto rank = static_cast<std::uint32_t>(r.U64());
    fresh.rank_totals_[rank] = ReadTotals(&r, reasons);
  }
  for (std::size_t n = r.Count(); n > 0 && r.ok(); --n) {
    auto attempt = std::make_unique<Attempt>(r.String(), 0, 0);
    if (version >= 2) {
      std::string declared = r.String();
      attempt->Continue(std::move(declared), r.U64());
    }
    attempt->view_.start_time_ns = r.I64();
    attempt->view_.first_step = r.I64();
    attempt->view_.last_step = r.I64();
    attempt->view_.steps = r.U64();
    attempt->view_.resumed_after_step = ReadOptionalI64(&r);
    if (version >= 3 && r.Bool()) attempt->view_.comparison = ReadComparison(version, &r);
    attempt->first_seen_ns_ = r.I64();
    attempt->last_joined_ = ReadOptionalI64(&r);
    attempt->highest_ = attempt->last_joined_;
    attempt->last_boot_ns_ = r.I64();
    attempt->last_wall_ns_ = r.I64();
    attempt->last_step_time_ns_ = r.I64();
    for (std::size_t ranks = r.Count(); ranks > 0 && r.ok(); --ranks) {
      auto slot = std::make_shared<ProducerSlot>();
      slot->info = std::make_shared<const ProducerInfo>(ReadInfo(run->name_, attempt->name(), &r));
      slot->has_liveness = r.Bool();
      slot->liveness = ReadLiveness(&r);
      slot->liveness.producer = slot->info;
      slot->gone = !run->options_.is_forwarded;  // until a source finds it again; who forwards may only be late
      slot->dirty = false;
      RankState& state = attempt->ranks_[slot->info->layout.rank];
      state.rank = slot->info->layout.rank;
      state.last_record_time_ns = r.I64();
      if (version >= 5 && r.Bool()) {
        slot->next_steps = slot->settled_steps = slot->committed_steps = r.U64();
        slot->next_events = slot->settled_events = slot->committed_events = r.U64();
        slot->counted_steps = r.U64();
        slot->counted_events = r.U64();
        slot->seen = ReadTotals(&r);
      }
      state.slot = slot;
      attempt->slots_.push_back(std::move(slot));
    }
    attempt->Index(true);
    fresh.attempts_.push_back(std::move(attempt));
  }
  for (std::size_t n = version >= 6 ? r.Count() : 0; n > 0 && r.ok(); --n) {
    Stumble stumble;
    stumble.incident_id = r.String();
    stumble.step = r.I64();
    stumble.target_fingerprint = r.Fixed64();
    stumble.unmasked_tokens = r.U64();
    fresh.stumbles_.Add(std::move(stumble));
  }
  if (!r.ok() || !r.at_end()) return false;

  run->next_sequence_ = fresh.next_sequence_;
  run->verdict_changes_ = fresh.verdict_changes_;
  run->has_verdict_ = fresh.has_verdict_;
  run->verdict_ = std::move(fresh.verdict_);
  run->last_checkpoint_ = std::move(fresh.last_checkpoint_);
  run->evaluation_loss_nats_ = fresh.evaluation_loss_nats_;
  run->evaluation_step_ = fresh.evaluation_step_;
  run->ended_ = fresh.ended_;
  run->failed_ = fresh.failed_;
  run->first_seen_ns_ = fresh.first_seen_ns_;
  run->ended_time_ns_ = fresh.ended_time_ns_;
  run->totals_ = fresh.totals_;
  run->rank_totals_ = std::move(fresh.rank_totals_);
  run->attempts_ = std::move(fresh.attempts_);
  run->IndexSlots();
  run->stumbles_ = std::move(fresh.stumbles_);
  return true;
}

std::string RunCodec::EncodeSlotTotals(const ProducerSlot& slot) {
  ByteWriter w;
  w.U64(kSlotVersion);
  w.U64(slot.counted_steps);
  w.U64(slot.counted_events);
  WriteTotals(slot.seen, &w);
  return w.Take();
}

bool RunCodec::DecodeSlotTotals(std::string_view bytes, ProducerSlot* slot) {
  ByteReader r(bytes);
  const std::uint64_t version = r.U64();
  if (version < 1 || version > kSlotVersion) return false;
  const std::uint64_t counted_steps = r.U64();
  const std::uint64_t counted_events = r.U64();
  const RankTotals seen = ReadTotals(&r, version >= 2 ? static_cast<std::size_t>(LossReason::kCount) : kFewerLossReasons);
  if (!r.ok() || !r.at_end()) return false;
  slot->counted_steps = counted_steps;
  slot->counted_events = counted_events;
  slot->seen = seen;
  return true;
}

}  // namespace lossgauge::state
