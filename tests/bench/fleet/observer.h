// What a scheduler and an engineer see of the simulated run through lossgauge.v1.LossGauge, and how long it took.
#ifndef LOSSGAUGE_TESTS_BENCH_FLEET_OBSERVER_H_
#define LOSSGAUGE_TESTS_BENCH_FLEET_OBSERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "tests/bench/fleet/job.h"

namespace lossgauge::fleet {

using Clock = std::chrono::steady_clock;

class Observer {
 public:
  Observer(const std::string& daemon, const std::string& run);
  ~Observer();

  // Follows the run's steps and asks for its verdict ten times a second, until Stop.
  void Start();
  void Stop();

  // Says when the last record of a step was handed to the senders, and what the step must come out as.
  void Published(std::int64_t step, const StepTruth& truth);
  std::int64_t last_joined() const { return last_joined_; }

  // From the last record's sending to the joined step at a watching client; seconds.
  std::vector<double> join_lags();
  // Of a GetVerdict, seconds.
  std::vector<double> verdict_times();
  // Answers by action: "CONTINUE" ...
  std::map<std::string, std::uint64_t> verdicts();
  // Steps as they stand in the history, late ranks added: one line for each whose loss, token count or fingerprint is another than it has, that is
  // there twice, or missing; at most 20.
  std::vector<std::string> WrongSteps();
  // Empty on failure, with the reason on standard error.
  std::vector<v1::Incident> Incidents();
  v1::Run Run();

 private:
  void FollowSteps();
  void AskVerdicts();
  std::string Compare(const v1::Step& step);

  const std::string run_;
  std::unique_ptr<v1::LossGauge::Stub> steps_stub_, verdict_stub_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> last_joined_{-1};
  std::mutex mutex_;  // guards what follows
  struct Sent {
    Clock::time_point time;
    StepTruth truth;
    bool joined = false;
    bool listed = false;
  };
  std::map<std::int64_t, Sent> sent_;
  std::vector<double> lags_, verdict_times_;
  std::map<std::string, std::uint64_t> verdicts_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::thread steps_thread_, verdict_thread_;
};

}  // namespace lossgauge::fleet

#endif  // LOSSGAUGE_TESTS_BENCH_FLEET_OBSERVER_H_
