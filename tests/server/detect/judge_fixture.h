// A small language for judge tests: a job's steps, events and signs of life, one call each.
//
//   JudgeScript job;
//   job.Steps(400, 2.2, 0.02);        // 400 steps at 2.2 nats with noise
//   job.Step({.loss = 5.1});
//   EXPECT_TRUE(job.IsOpen(Condition::kLossSpike));
#ifndef LOSSGAUGE_TESTS_SERVER_DETECT_JUDGE_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_DETECT_JUDGE_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/detect/judge.h"

namespace lossgauge::testing {

using state::Action;
using state::Condition;

inline constexpr state::TimeNs kSecond = 1'000'000'000;

struct StepValues {
  std::optional<double> loss;
  std::optional<double> grad_norm;
  std::optional<double> max_abs_logit;
  std::optional<double> learning_rate;
  std::optional<double> reported_loss;
  std::uint64_t nonfinite_rows = 0;
  std::vector<std::uint32_t> missing_ranks;
  // Last word on each rank's record.
  std::function<void(std::uint32_t rank, lg_step_record& record)> edit;
};

// Gaussian noise with lag-one correlation `rho` and standard deviation `sd`, the same on every machine for a seed.
class Noise {
 public:
  Noise(std::uint64_t seed, double sd, double rho = 0) : state_(seed * 2 + 1), sd_(sd), rho_(rho) {}
  double Next();

 private:
  double Uniform();
  std::uint64_t state_;
  double sd_;
  double rho_;
  double value_ = 0;
};

class JudgeScript {
 public:
  explicit JudgeScript(detect::Policy policy = detect::DefaultPolicies().defaults, std::uint32_t data_parallel = 1, std::uint32_t tensor_parallel = 1);

  // One step; the clock advances by `step_ns` first.
  void Step(const StepValues& values);
  void Loss(double loss) { Step({.loss = loss}); }
  // `count` steps around `level`, gradient norm around 0.24.
  void Steps(int count, double level, double sd = 0.02);
  state::JoinedStep MakeStep(const StepValues& values) const;  // for the present step and time

  void NewAttempt(const std::string& name, std::int64_t next_step);
  void Checkpoint(std::int64_t step, const std::string& path);
  void Wait(double seconds) { now_ns += static_cast<state::TimeNs>(seconds * 1e9); }

  // Signs of life of every rank: live and training unless edited.
  void Look(const std::function<void(std::uint32_t rank, state::LivenessReport& report)>& edit = nullptr);
  // Waits in looks of five seconds, as a sidecar does.
  void WaitLooking(double seconds, const std::function<void(std::uint32_t rank, state::LivenessReport& report)>& edit = nullptr);

  state::Verdict Verdict() const { return judge->Evaluate(now_ns); }
  std::optional<state::Incident> FindOpen(Condition condition, const std::string& kind = "*") const;
  bool IsOpen(Condition condition, const std::string& kind = "*") const { return FindOpen(condition, kind).has_value(); }
  // Over the run's life, all kinds unless one is given.
  std::uint64_t Opened(Condition condition, const std::string& kind = "*") const;
  std::uint64_t OpenedInAll() const;
  std::shared_ptr<const state::ProducerInfo> Producer(std::uint32_t rank) const;
  // The judge is saved and a new one restored from the bytes.
  void Restart();

  detect::Policy policy;
  std::uint32_t dp;
  std::uint32_t tp;
  std::int64_t next_step = 0;
  state::TimeNs now_ns = 1'700'000'000 * kSecond;
  state::TimeNs step_ns = kSecond;
  std::uint64_t tokens = 1024;  // a rank
  std::uint32_t gradient_reduction = LG_GRADIENT_REDUCTION_MEAN;
  std::string attempt = "1";
  state::TimeNs attempt_start_ns = 1'700'000'000 * kSecond;
  state::Presence presence;  // as handed over last
  std::unique_ptr<state::RunJudge> judge;
  Noise noise{7, 1};

 private:
  mutable std::map<std::pair<std::string, std::uint32_t>, std::shared_ptr<const state::ProducerInfo>> producers_;
  std::int64_t last_step_ = -1;
  state::TimeNs last_step_time_ns_ = 0;
};

// The nine public values of the first loss spike of a large open training run (loss, gradient norm), after `baseline` quiet steps.
inline constexpr double kBloomLoss[] = {2.199, 2.220, 2.595, 2.242, 2.345, 5.098, 3.492, 3.213, 2.805};
inline constexpr double kBloomGradNorm[] = {0.242, 0.947, 2.39, 15.9, 145, 960, 353, 379, 650};

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_DETECT_JUDGE_FIXTURE_H_
