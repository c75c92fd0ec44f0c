// A sink that keeps what a source hands over, and a place for cursors.
#ifndef LOSSGAUGE_TESTS_SERVER_INGEST_RECORDING_SINK_H_
#define LOSSGAUGE_TESTS_SERVER_INGEST_RECORDING_SINK_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/state/source.h"

namespace lossgauge::testing {

class RecordingSink final : public state::RecordSink, public state::CursorLookup {
 public:
  bool OnProducer(std::shared_ptr<const state::ProducerInfo> producer) override {
    if (refused_runs.contains(producer->run)) return false;
    producers.push_back(std::move(producer));
    return true;
  }
  void OnSample(state::RankSample sample) override {
    cursors[sample.producer->segment].next_steps_publication = sample.publication + 1;
    samples.push_back(std::move(sample));
  }
  void OnEvent(state::ProducerEvent event) override {
    cursors[event.producer->segment].next_events_publication = event.publication + 1;
    events.push_back(std::move(event));
  }
  void OnLiveness(const state::LivenessReport& report) override { liveness.push_back(report); }
  void OnLoss(const state::LossReport& report) override {
    lost[report.reason] += report.records;
    losses.push_back(report);
  }
  void OnProducerGone(const state::SegmentId& segment, state::TimeNs) override { gone.push_back(segment); }
  state::ResumePosition FindCursor(const state::SegmentId& segment) const override {
    const auto it = cursors.find(segment);
    return it == cursors.end() ? state::ResumePosition{} : it->second;
  }

  std::uint64_t total_lost() const {
    std::uint64_t total = 0;
    for (const auto& [reason, records] : lost) total += records;
    return total;
  }

  std::set<std::string> refused_runs;
  std::map<state::SegmentId, state::ResumePosition> cursors;
  std::vector<std::shared_ptr<const state::ProducerInfo>> producers;
  std::vector<state::RankSample> samples;
  std::vector<state::ProducerEvent> events;
  std::vector<state::LivenessReport> liveness;
  std::vector<state::LossReport> losses;
  std::map<state::LossReason, std::uint64_t> lost;
  std::vector<state::SegmentId> gone;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_INGEST_RECORDING_SINK_H_
