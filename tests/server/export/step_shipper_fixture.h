// A shipper over a board, a history and a receiver made by hand.
#ifndef LOSSGAUGE_TESTS_SERVER_EXPORT_STEP_SHIPPER_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_EXPORT_STEP_SHIPPER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "server/export/step_shipper.h"
#include "tests/scratch_directory.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge::export_ {

// Takes everything unless told otherwise; knows every sample that it was ever given.
class FakeSink final : public StepSink {
 public:
  SinkAnswer Send(std::string_view run, const std::vector<TimedStep>& steps) override {
    ++sends;
    SinkAnswer answer;
    answer.result = state::ShipResult::kTaken;
    if (!answers.empty()) {
      answer = answers.front();
      answers.pop_front();
    }
    if (answers_of.count(std::string(run)) != 0) answer = answers_of[std::string(run)];
    last_sizes.push_back(steps.size());
    for (const TimedStep& timed : steps) {
      seen.emplace_back(std::string(run), timed.step->sequence, timed.timestamp_ms);
      if (answer.result == state::ShipResult::kTaken) taken[std::string(run)].push_back(timed);
    }
    answer.samples = steps.size();
    return answer;
  }
  void Cancel() override {}
  std::string name() const override { return "fake://"; }

  std::deque<SinkAnswer> answers;
  std::map<std::string, SinkAnswer> answers_of;
  std::map<std::string, std::vector<TimedStep>> taken;
  std::vector<std::tuple<std::string, std::uint64_t, std::int64_t>> seen;
  std::vector<std::size_t> last_sizes;
  int sends = 0;
};

inline SinkAnswer Answer(state::ShipResult result, state::ShipDrop reason = state::ShipDrop::kRefused, std::int64_t retry_after_ns = 0) {
  SinkAnswer answer;
  answer.result = result;
  answer.reason = reason;
  answer.retry_after_ns = retry_after_ns;
  answer.text = "as told";
  return answer;
}

class StepShipperTest : public ::testing::Test {
 protected:
  StepShipperTest() { Restart(); }

  void Restart() {
    shipper_.reset();
    auto cursors = ShipCursors::Open(directory_.path(), "sent.sqlite3");
    ASSERT_TRUE(cursors.ok()) << cursors.status();
    shipper_ = std::make_unique<StepShipper>(options_, board_, history_, &sink_, *std::move(cursors), &counters_, [this] { return now_ns_; });
    const absl::Status status = shipper_->Load();
    ASSERT_TRUE(status.ok()) << status;
  }
  // Steps `first` to `last` by sequence, one every `interval_ns` up to now, in history.
  void Steps(const std::string& run, std::uint64_t first, std::uint64_t last, std::int64_t interval_ns = testing::kSecond) {
    for (std::uint64_t sequence = first; sequence <= last; ++sequence) {
      auto step = std::make_shared<state::StepSummary>();
      step->sequence = sequence;
      step->step = static_cast<std::int64_t>(sequence) - 1;
      step->receive_time_ns = now_ns_ - static_cast<std::int64_t>(last - sequence) * interval_ns;
      step->publish_time_ns = step->receive_time_ns - 2'000'000;
      step->loss_nats = 0.5 * static_cast<double>(sequence);
      all_[run].push_back(step);
    }
  }
  // A snapshot of them that holds those from `from` on.
  void Show(const std::string& run, std::uint64_t from = 1) {
    auto snapshot = std::make_shared<state::RunSnapshot>();
    snapshot->run = run;
    auto chunk = std::make_shared<state::StepChunk>();
    for (const auto& step : all_[run]) {
      if (step->sequence >= from) chunk->push_back(step);
    }
    if (!chunk->empty()) snapshot->recent_steps.push_back(chunk);
    snapshot->next_sequence = all_[run].empty() ? 1 : all_[run].back()->sequence + 1;
    shown_[run] = snapshot;
    Publish();
  }
  void Publish() {
    auto snapshot = std::make_shared<state::Snapshot>();
    snapshot->version = ++version_;
    for (const auto& [name, run] : shown_) snapshot->runs.push_back(run);
    board_.Publish(snapshot);
  }
  std::vector<std::uint64_t> Taken(const std::string& run) {
    std::vector<std::uint64_t> sequences;
    for (const TimedStep& timed : sink_.taken[run]) sequences.push_back(timed.step->sequence);
    return sequences;
  }
  void Drain() {
    while (shipper_->RunRound()) {
    }
  }

  // Only ReadSteps is asked.
  struct StepHistory final : public state::HistoryReader {
    explicit StepHistory(std::map<std::string, std::vector<std::shared_ptr<state::StepSummary>>>* all) : all_(all) {}
    absl::StatusOr<std::vector<state::StepSummary>> ReadSteps(const state::StepQuery& query) override {
      if (broken) return absl::UnavailableError("busy");
      std::vector<state::StepSummary> rows;
      auto& steps = (*all_)[query.run];
      if (query.newest_first) {
        if (!steps.empty()) rows.push_back(*steps.back());
        return rows;
      }
      for (const auto& step : steps) {
        if (step->sequence <= query.after_sequence || gone.count(step->sequence) != 0) continue;
        if (static_cast<int>(rows.size()) == query.limit) break;
        rows.push_back(*step);
      }
      return rows;
    }
    absl::StatusOr<std::vector<state::Incident>> ReadIncidents(const std::string&, bool, int, int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::optional<state::Incident>> FindIncident(const std::string&, const std::string&) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::vector<state::Verdict>> ReadVerdicts(const std::string&, int, int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<state::EventPage> ReadEvents(const std::string&, std::int64_t, int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::vector<state::LedgerEntry>> ReadLedger(const std::string&) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::vector<state::StoredRun>> ReadRuns(int) override { return absl::UnimplementedError(""); }
    absl::StatusOr<std::optional<state::StoredRun>> FindRun(const std::string&) override { return absl::UnimplementedError(""); }
    std::map<std::string, std::vector<std::shared_ptr<state::StepSummary>>>* const all_;
    std::set<std::uint64_t> gone;
    bool broken = false;
  };

  ScratchDirectory directory_;
  ShipperOptions options_;
  state::TimeNs now_ns_ = testing::kNow;
  state::SnapshotBoard board_;
  std::map<std::string, std::vector<std::shared_ptr<state::StepSummary>>> all_;
  std::map<std::string, std::shared_ptr<const state::RunSnapshot>> shown_;
  std::shared_ptr<StepHistory> history_ = std::make_shared<StepHistory>(&all_);
  std::uint64_t version_ = 0;
  state::ShipCounters counters_;
  FakeSink sink_;
  std::unique_ptr<StepShipper> shipper_;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_TESTS_SERVER_EXPORT_STEP_SHIPPER_FIXTURE_H_
