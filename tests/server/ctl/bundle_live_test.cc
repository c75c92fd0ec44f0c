// What lossgauged said of a job of two ranks, and what a bundle of that job's steps says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <tuple>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/api/convert_step.h"
#include "server/detect/judge.h"
#include "server/replay/bundle.h"
#include "server/replay/no_store.h"
#include "server/replay/observed_judge.h"
#include "server/replay/read_log.h"
#include "server/replay/replay.h"
#include "server/state/joined_step.h"
#include "server/state/run_book.h"
#include "tests/scratch_directory.h"
#include "tests/server/ctl/fake_lossgauge.h"
#include "tests/server/ctl/session.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;

constexpr state::TimeNs kSecond = 1'000'000'000;
constexpr int kSteps = 1200;
constexpr int kRanks = 2;
constexpr std::uint64_t kTokens = 2048;  // of a rank

// One condition, as it became.
using Seen = std::tuple<std::string, std::string, std::int64_t, state::Severity>;

class LiveJob final : public replay::JudgeObserver {
 public:
  LiveJob() : judges_(detect::DefaultPolicies()), observed_(&judges_, this), book_({}, &observed_, &store_, now_ns_) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      auto info = std::make_shared<state::ProducerInfo>();
      info->segment.words[0] = rank + 1;
      info->run = "demo";
      info->attempt = "a1";
      info->attempt_start_ns = 1;
      info->layout.world_size = kRanks;
      info->layout.rank = rank;
      info->layout.dp = {kRanks, rank};
      info->layout.tp = info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
      info->layout.has_loss = 1;
      info->z_loss_weight = 1e-4;
      info->block_names[0] = "train";
      ranks_.push_back(std::move(info));
      totals_.emplace_back();
      book_.OnProducer(ranks_.back());
    }
  }

  // Losses with noise, a spike at 400, NaN from 1000 on; log Z that wanders off although a z-loss should hold it; every ten steps rank 0 reports the
  // mean over ten as its trainer prints it, in bf16.
  void Train() {
    std::mt19937_64 random(7);
    std::normal_distribution<double> noise(0, 0.02);
    double log_z = 10, sum = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      now_ns_ += kSecond;
      log_z += 0.01;
      std::vector<state::RankSample> samples;
      double mean = 0;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        const double loss = 2.5 - 0.0005 * static_cast<double>(step) + noise(random) + (step >= 400 && step < 405 ? 2.0 : 0.0);
        mean += loss / kRanks;
        samples.push_back(Sample(rank, step, step >= 1000 ? std::numeric_limits<double>::quiet_NaN() : loss, log_z));
      }
      sum += mean;
      if (step % 10 == 9) {
        lg_step_record& record = samples[0].record;
        record.present |= LG_HAS_REPORTED_LOSS;
        record.reported_loss = Bf16(sum / 10);
        record.reported_loss_dtype = LG_DTYPE_BF16;
        record.reported_loss_interval = 10;
        sum = 0;
      }
      steps.push_back(state::JoinSamples(samples).summary);
      steps.back().sequence = static_cast<std::uint64_t>(step) + 1;
      steps.back().step_seconds = 1;
      for (auto& sample : samples) book_.OnSample(std::move(sample));
      for (const auto& rank : ranks_) {
        state::LivenessReport report;
        report.producer = rank;
        report.enqueued_step = report.published_step = report.entered_step = step;
        report.last_call = LG_CALL_PUBLISH;
        report.drained = true;
        report.time_ns = now_ns_;
        book_.OnLiveness(report);
      }
      book_.Advance(now_ns_, true);
      if (step % 200 != 0) continue;
      (void)book_.BuildTransaction(now_ns_);
      book_.OnCommitted();
      (void)book_.BuildSnapshot(now_ns_, {});
    }
  }

  void OnIncidents(const std::vector<state::Incident>& changed) override {
    for (const state::Incident& incident : changed) incidents_[incident.id] = incident;
  }
  void OnVerdict(const state::Verdict& verdict) override {
    if (verdict.action != state::Action::kUnknown && (actions.empty() || actions.back() != verdict.action)) actions.push_back(verdict.action);
  }

  std::set<Seen> Incidents() const {
    std::set<Seen> seen;
    for (const auto& [id, one] : incidents_) seen.insert({std::string(state::ConditionName(one.condition)), one.kind, one.onset_step, one.severity});
    return seen;
  }
  std::vector<state::Action> actions;
  std::vector<state::StepSummary> steps;

 private:
  static double Bf16(double value) {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(static_cast<float>(value)) + 0x8000u) & 0xffff0000u);
  }

  state::RankSample Sample(std::uint32_t rank, std::int64_t step, double loss, double log_z) {
    state::RankSample sample;
    sample.producer = ranks_[rank];
    sample.publication = static_cast<std::uint64_t>(step) + 1;
    sample.receive_time_ns = now_ns_;
    lg_step_record& r = sample.record;
    r.step = step;
    r.boot_ns = (1000 + step) * kSecond;
    r.wall_ns = now_ns_;
    r.micro_batches = 1;
    r.present = LG_HAS_LOSS | LG_HAS_OBJECTIVE | LG_HAS_LOGITS | LG_HAS_GRAD_NORM;
    r.tokens = r.unmasked_tokens = kTokens;
    r.grad_norm = 0.5;
    if (std::isnan(loss)) {
      r.nonfinite_rows = kTokens;
    } else {
      const auto tokens = static_cast<double>(kTokens);
      r.finite_tokens = r.target_hits = kTokens;
      r.nll_sum = lg_fixed128_from_double(loss * tokens);
      r.z_loss_sum = lg_fixed128_from_double(1e-4 * log_z * log_z * tokens);
      r.objective_sum = lg_fixed128_add(r.nll_sum, r.z_loss_sum);
      r.log_z_sum = lg_fixed128_from_double(log_z * tokens);
      r.log_z_max = log_z;
      r.max_abs_logit = 12;
      r.target_fingerprint = static_cast<std::uint64_t>(step) * 1'000'003 + rank;
      r.mask_fingerprint = 5;
    }
    lg_step_record& t = totals_[rank];
    t.total_steps += 1;
    t.total_tokens += r.tokens;
    t.total_unmasked_tokens += r.unmasked_tokens;
    t.total_finite_tokens += r.finite_tokens;
    t.total_nonfinite_rows += r.nonfinite_rows;
    t.total_nll_sum = lg_fixed128_add(t.total_nll_sum, r.nll_sum);
    t.total_z_loss_sum = lg_fixed128_add(t.total_z_loss_sum, r.z_loss_sum);
    t.total_nonfinite_steps += r.nonfinite_rows > 0 ? 1 : 0;
    r.total_steps = t.total_steps;
    r.total_tokens = t.total_tokens;
    r.total_unmasked_tokens = t.total_unmasked_tokens;
    r.total_finite_tokens = t.total_finite_tokens;
    r.total_nonfinite_rows = t.total_nonfinite_rows;
    r.total_nll_sum = t.total_nll_sum;
    r.total_z_loss_sum = t.total_z_loss_sum;
    r.total_nonfinite_steps = t.total_nonfinite_steps;
    return sample;
  }

  state::TimeNs now_ns_ = 1'700'000'000 * kSecond;
  detect::DetectorJudgeFactory judges_;
  replay::ObservedJudgeFactory observed_;
  replay::NoStore store_;
  state::RunBook book_;
  std::vector<std::shared_ptr<const state::ProducerInfo>> ranks_;
  std::vector<lg_step_record> totals_;
  std::map<std::string, state::Incident> incidents_;
};

TEST(BundleOfALiveJob, GivesTheVerdictsThatTheJobGot) {
  LiveJob job;
  job.Train();
  const std::set<Seen> live = job.Incidents();
  for (const char* condition : {"loss_spike", "normalizer_drift", "nonfinite"}) {
    EXPECT_TRUE(std::any_of(live.begin(), live.end(), [&](const Seen& one) { return std::get<0>(one) == condition; })) << condition;
  }
  ASSERT_THAT(job.actions, ::testing::Contains(state::Action::kRestart));

  FakeLossGauge fake;
  Session session;
  session.environment = {{"LOSSGAUGE_ADDRESS", fake.address()}};
  fake.runs["demo"] = MakeRun("demo", v1::RESTART, "nonfinite");
  for (const state::StepSummary& summary : job.steps) api::ToMessage(summary, true, &fake.steps["demo"].emplace_back());
  const ScratchDirectory scratch;
  const std::string path = scratch / "b.tar";
  ASSERT_EQ(session.Run({"bundle", "demo", "-o", path}), 0) << session.err;

  replay::Replay again("demo", detect::DefaultPolicies());
  const auto report = replay::ReadLogFile(path, &again);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->points, static_cast<std::uint64_t>(kSteps));
  ASSERT_FALSE(report->notes.empty());
  EXPECT_THAT(report->notes[0], HasSubstr("those of 2 ranks together"));
  const replay::ReplayResult result = again.Finish();
  std::set<Seen> replayed;
  for (const auto& life : result.incidents) {
    const state::Incident& one = life.incident;
    replayed.insert({std::string(state::ConditionName(one.condition)), one.kind, one.onset_step, one.severity});
  }
  EXPECT_EQ(replayed, live);
  std::vector<state::Action> actions;
  for (const auto& change : result.verdicts) {
    if (change.verdict.action != state::Action::kUnknown && (actions.empty() || actions.back() != change.verdict.action)) {
      actions.push_back(change.verdict.action);
    }
  }
  EXPECT_EQ(actions, job.actions);
}

}  // namespace
}  // namespace lossgauge::ctl
