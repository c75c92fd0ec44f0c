// State made by hand for tests of what serves it.
#ifndef LOSSGAUGE_TESTS_SERVER_API_FAKE_STATE_H_
#define LOSSGAUGE_TESTS_SERVER_API_FAKE_STATE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/state/board.h"
#include "server/state/clock.h"
#include "server/state/store.h"

namespace lossgauge::testing {

// 2026-03-04T05:06:07Z
inline constexpr state::TimeNs kNow = 1'772'600'767'000'000'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;

class FakeClock final : public state::Clock {
 public:
  state::TimeNs NowNs() override { return now_ns_; }
  std::int64_t BootNs() override { return now_ns_ - kNow; }
  void Advance(std::int64_t ns) { now_ns_ += ns; }

 private:
  std::atomic<state::TimeNs> now_ns_{kNow};
};

// Holds what tests put in and answers as the store does.
class FakeHistory final : public state::HistoryReader {
 public:
  absl::StatusOr<std::vector<state::StepSummary>> ReadSteps(const state::StepQuery& query) override;
  absl::StatusOr<std::vector<state::Incident>> ReadIncidents(const std::string& run, bool open_only, int limit, int offset) override;
  absl::StatusOr<std::optional<state::Incident>> FindIncident(const std::string& run, const std::string& id) override;
  absl::StatusOr<std::vector<state::Verdict>> ReadVerdicts(const std::string& run, int limit, int offset) override;
  absl::StatusOr<state::EventPage> ReadEvents(const std::string& run, std::int64_t after_id, int limit) override;
  absl::StatusOr<std::vector<state::LedgerEntry>> ReadLedger(const std::string& run) override;
  absl::StatusOr<std::vector<state::StoredRun>> ReadRuns(int limit) override;
  absl::StatusOr<std::optional<state::StoredRun>> FindRun(const std::string& run) override;

  std::mutex mutex;
  std::vector<state::StepSummary> steps;       // rising sequence
  std::vector<state::Incident> incidents;      // newest first
  std::vector<state::Verdict> verdicts;        // newest first; one of policy "damaged" takes a place, but cannot be read
  std::vector<state::ProducerEvent> events;    // as they came; one without a producer is damaged
  std::vector<state::LedgerEntry> ledger;
  std::vector<state::StoredRun> runs;          // newest first
  std::function<void()> on_read_steps;         // called before each ReadSteps, without the mutex
  absl::Status error;                          // given instead of an answer, if not OK
  std::atomic<int> reads{0};
};

state::StepSummary MakeStep(std::uint64_t sequence, std::int64_t step, double loss_nats);
// Everything measured.
state::StepSummary MakeFullStep(std::uint64_t sequence, std::int64_t step);
state::Verdict MakeVerdict(state::Action action, std::string reason_code, state::TimeNs evaluated_at_ns = kNow, std::int64_t term_ns = 30 * kSecond);
state::Incident MakeIncident(std::string id, state::Condition condition, bool open = true);

// A run in "advise" mode with a fresh CONTINUE and steps `first_sequence` to `last_sequence` in chunks of 4; step = sequence - 1.
std::shared_ptr<state::RunSnapshot> MakeRun(const std::string& name, std::uint64_t first_sequence = 1, std::uint64_t last_sequence = 0);
// Every field set.
std::shared_ptr<state::RunSnapshot> MakeFullRun(const std::string& name);

std::shared_ptr<state::Snapshot> MakeSnapshot(std::uint64_t version, std::vector<std::shared_ptr<const state::RunSnapshot>> runs);

// Answers the mailbox as the drain thread does, until destruction.
class FakeDrain {
 public:
  explicit FakeDrain(state::Mailbox& mailbox);
  ~FakeDrain();

  std::mutex mutex;
  std::vector<state::Incident> incidents;  // those that can be acknowledged
  std::vector<state::Mailbox::Report> ledger;
  std::vector<state::Mailbox::SetMode> modes;

 private:
  state::Mailbox& mailbox_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_API_FAKE_STATE_H_
