#include "server/main/step_sinks.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace lossgauge::main {

absl::StatusOr<std::unique_ptr<StepSinks>> StepSinks::Make(const SinkFlags& flags, const std::string& state_dir, const state::SnapshotBoard& board,
                                                           std::shared_ptr<state::HistoryReader> history, state::ServiceCounters* counters) {
  auto sinks = std::make_unique<StepSinks>();
  export_::ShipperOptions options;
  options.backlog.max_age_ns = flags.max_age_ns;
  options.max_pending_steps = flags.max_pending_steps;
  const auto add = [&](std::unique_ptr<export_::StepSink> sink, state::Sink kind) -> absl::Status {
    const std::string file = std::string(state::kSinkNames[static_cast<std::size_t>(kind)]) + ".sqlite3";
    absl::StatusOr<std::unique_ptr<export_::ShipCursors>> cursors = export_::ShipCursors::Open(state_dir, file);
    if (!cursors.ok()) return cursors.status();
    auto shipper = std::make_unique<export_::StepShipper>(options, board, history, sink.get(), *std::move(cursors),
                                                          &counters->sinks[static_cast<std::size_t>(kind)], nullptr);
    if (const absl::Status status = shipper->Load(); !status.ok()) return status;
    spdlog::info("steps are sent to {}", sink->name());
    sinks->entries_.push_back({std::move(sink), std::move(shipper)});
    return absl::OkStatus();
  };
  if (flags.remote_write) {
    absl::StatusOr<std::unique_ptr<export_::RemoteWriteSink>> sink = export_::RemoteWriteSink::Make(*flags.remote_write);
    if (!sink.ok()) return sink.status();
    if (const absl::Status status = add(*std::move(sink), state::Sink::kRemoteWrite); !status.ok()) return status;
  }
  if (flags.otlp) {
    absl::StatusOr<std::unique_ptr<export_::OtlpSink>> sink = export_::OtlpSink::Make(*flags.otlp);
    if (!sink.ok()) return sink.status();
    if (const absl::Status status = add(*std::move(sink), state::Sink::kOtlp); !status.ok()) return status;
  }
  return sinks;
}

void StepSinks::Start() {
  for (Entry& entry : entries_) entry.shipper->Start();
}

void StepSinks::Stop(std::int64_t limit_ns) {
  for (Entry& entry : entries_) entry.shipper->Stop(limit_ns / static_cast<std::int64_t>(entries_.size()));
}

}  // namespace lossgauge::main
