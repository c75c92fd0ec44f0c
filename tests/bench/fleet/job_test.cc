// The simulated job adds up, is the same each time, and is ill only where it was told to be; then what the real join and detectors say of it.
#include "tests/bench/fleet/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/judge.h"
#include "server/detect/policy.h"
#include "server/state/run_book.h"
#include "server/state/store.h"

namespace lossgauge::fleet {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

JobOptions Small(std::uint32_t ranks = 64, std::uint32_t tensor_parallel = 8) {
  JobOptions options;
  options.ranks = ranks;
  options.tensor_parallel = tensor_parallel;
  return options;
}

TEST(FleetJob, SumsOverRanksAreTheTruth) {
  Job job(Small(), {});
  for (std::int64_t step = 0; step < 50; ++step) {
    job.BeginStep(step);
    double nll = 0;
    std::uint64_t tokens = 0, hits = 0, mass = 0;
    for (std::uint32_t rank = 0; rank < 64; ++rank) {
      const lg_step_record record = job.RecordOf(rank);
      hits += record.target_hits;
      mass += static_cast<std::uint64_t>(lg_fixed128_to_double(record.probability_mass));
      if (rank % 8 != 0) continue;
      nll += lg_fixed128_to_double(record.nll_sum);
      tokens += record.unmasked_tokens;
    }
    EXPECT_EQ(tokens, job.truth().unmasked_tokens);
    EXPECT_EQ(hits, tokens);
    EXPECT_EQ(mass, tokens);
    EXPECT_NEAR(nll / static_cast<double>(tokens), job.truth().loss_nats(), 1e-12);
    EXPECT_EQ(job.RecordOf(0).reported_loss, job.truth().loss_nats());
  }
}

TEST(FleetJob, TheLossIsNoisyAndFalls) {
  Job job(Small(), {});
  double first = 0, last = 0, moved = 0, before = 0;
  for (std::int64_t step = 0; step < 1000; ++step) {
    job.BeginStep(step);
    const double loss = job.truth().loss_nats();
    if (step < 100) first += loss / 100;
    if (step >= 900) last += loss / 100;
    if (step > 0) moved += std::fabs(loss - before) / 999;
    before = loss;
  }
  EXPECT_GT(first - last, 0.1);
  EXPECT_GT(moved, 0.005);
  EXPECT_LT(moved, 0.03);
}

TEST(FleetJob, TheSameSeedGivesTheSameBytesAndAnotherOthers) {
  JobOptions options = Small();
  Job a(options, {}), b(options, {});
  options.seed = 2;
  Job c(options, {});
  for (Job* job : {&a, &b, &c}) job->BeginStep(7);
  const lg_step_record x = a.RecordOf(13), y = b.RecordOf(13), z = c.RecordOf(13);
  EXPECT_EQ(std::memcmp(&x, &y, sizeof x), 0);
  EXPECT_NE(lg_fixed128_to_double(x.nll_sum), lg_fixed128_to_double(z.nll_sum));
}

TEST(FleetJob, AFaultTouchesItsRankAndItsStepsOnly) {
  const std::vector<Fault> faults = {{FaultKind::kDenominator, 3, 5, 6, 2}, {FaultKind::kAgreement, 9, 5, 5, 0.5}, {FaultKind::kMissing, 17, 6, 6, 0}};
  Job healthy(Small(), {}), sick(Small(), faults);
  for (std::int64_t step = 0; step < 10; ++step) {
    healthy.BeginStep(step);
    sick.BeginStep(step);
    for (std::uint32_t rank = 0; rank < 64; ++rank) {
      if (!sick.Publishes(rank)) {
        EXPECT_TRUE(rank == 17 && step == 6);
        continue;
      }
      const lg_step_record a = healthy.RecordOf(rank), b = sick.RecordOf(rank);
      EXPECT_EQ(b.denominator_min == a.denominator_min, !(rank == 3 && step >= 5 && step <= 6)) << rank << " " << step;
      EXPECT_EQ(lg_fixed128_compare(a.nll_sum, b.nll_sum) == 0, !(rank == 9 && step == 5)) << rank << " " << step;
    }
  }
}

TEST(FleetFaults, AreReadAndRefusedWithTheWord) {
  const auto faults = ParseFaults("denominator@17:60-69:2,drop@3:100-110");
  ASSERT_TRUE(faults.ok());
  ASSERT_EQ(faults->size(), 2u);
  EXPECT_EQ((*faults)[0].at, 17u);
  EXPECT_EQ((*faults)[0].last, 69);
  EXPECT_EQ((*faults)[1].kind, FaultKind::kDrop);
  for (const char* wrong : {"denominatr@1:2-3", "loss@x:2-3", "loss@1:3-2", "loss@1:2", "loss@1:2-3:nan", "loss@1:2-3:4:5", "loss:2-3", "loss@-1:2-3"}) {
    const auto refused = ParseFaults(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_NE(refused.status().message().find(wrong), std::string::npos);
  }
}

// The real join and detectors over the job's records, as if one daemon had them all in order.
class Judged {
 public:
  Judged(const JobOptions& options, std::vector<Fault> faults)
      : job_(options, faults), judges_(detect::DefaultPolicies()), store_(*state::Store::Open({})),
        book_(BookOptions(options.ranks), &judges_, store_.get(), now_ns_) {
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      auto info = std::make_shared<state::ProducerInfo>();
      info->segment.words[0] = rank + 1;
      info->run = options.run;
      info->attempt = options.attempt;
      info->layout = job_.LayoutOf(rank);
      info->block_names[0] = "train";
      EXPECT_TRUE(book_.OnProducer(info));
      producers_.push_back(std::move(info));
    }
  }

  void Run(std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      job_.BeginStep(step);
      for (std::uint32_t rank = 0; rank < producers_.size(); ++rank) {
        state::LivenessReport life;
        life.producer = producers_[rank];
        life.producer_state = job_.IsAlive(rank) ? state::ProducerState::kLive : state::ProducerState::kLost;
        life.drained = !job_.IsAlive(rank);
        life.enqueued_step = life.published_step = life.entered_step = static_cast<std::int64_t>(job_.published(rank)) - 1;
        life.time_ns = now_ns_;
        book_.OnLiveness(life);
        if (!job_.Publishes(rank)) continue;
        state::RankSample sample;
        sample.producer = producers_[rank];
        sample.record = job_.RecordOf(rank);
        sample.publication = job_.published(rank);
        sample.receive_time_ns = now_ns_;
        book_.OnSample(std::move(sample));
      }
      now_ns_ += kSecond;
      book_.Advance(now_ns_, true);
      book_.BuildTransaction(now_ns_);
      book_.OnCommitted();
    }
    now_ns_ += 5 * kSecond;
    book_.Advance(now_ns_, true);
  }

  // Without symptoms of others.
  std::vector<state::Incident> Incidents() {
    std::vector<state::Incident> incidents = book_.BuildSnapshot(now_ns_, {})->runs.at(0)->incidents;
    std::erase_if(incidents, [](const state::Incident& incident) { return !incident.hidden_by.empty(); });
    return incidents;
  }

 private:
  static state::RunBookOptions BookOptions(std::uint32_t ranks) {
    state::RunBookOptions options;
    options.run.join.max_ranks = ranks;
    options.run.join.max_pending = 8 * ranks;
    return options;
  }

  Job job_;
  state::TimeNs now_ns_ = 1'700'000'000 * kSecond;
  detect::DetectorJudgeFactory judges_;
  std::unique_ptr<state::Store> store_;
  state::RunBook book_;
  std::vector<std::shared_ptr<const state::ProducerInfo>> producers_;
};

std::string Text(const std::vector<state::Incident>& incidents) {
  std::string text;
  for (const state::Incident& incident : incidents) {
    text += incident.summary + "\n";
  }
  return text;
}

TEST(FleetJudged, AHealthyJobRaisesNothing) {
  for (const std::uint32_t tensor_parallel : {1u, 4u}) {
    Judged judged(Small(64 * tensor_parallel, tensor_parallel), {});
    judged.Run(400);
    EXPECT_EQ(judged.Incidents().size(), 0u) << Text(judged.Incidents());
  }
}

TEST(FleetJudged, EveryFaultIsNamedWithItsRankAndNothingElseIs) {
  for (const std::uint32_t tensor_parallel : {1u, 4u}) {
    const std::uint32_t ranks = 64 * tensor_parallel;
    const std::vector<Fault> faults = StandardFaults(ranks, tensor_parallel, 8);
    Judged judged(Small(ranks, tensor_parallel), faults);
    judged.Run(LastStep(faults) + 40);
    std::vector<state::Incident> left = judged.Incidents();
    for (const Fault& fault : faults) {
      const auto expected = ExpectedOf(fault, tensor_parallel);
      if (!expected) continue;
      const auto found = std::find_if(left.begin(), left.end(), [&](const state::Incident& incident) {
        return state::ConditionName(incident.condition) == expected->condition && (expected->kind.empty() || incident.kind == expected->kind) &&
               incident.rank == expected->rank && incident.onset_step == expected->onset_step.value_or(incident.onset_step);
      });
      EXPECT_NE(found, left.end()) << FaultName(fault.kind) << " of rank " << *expected->rank << " not among\n" << Text(left);
      if (found != left.end()) left.erase(found);
    }
    EXPECT_EQ(left.size(), 0u) << Text(left);
  }
}

TEST(FleetJudged, ARankThatDiesIsNamed) {
  Judged judged(Small(), {{FaultKind::kDies, 37, 100, 100, 0}});
  judged.Run(110);
  const auto incidents = judged.Incidents();
  ASSERT_EQ(incidents.size(), 1u) << Text(incidents);
  EXPECT_EQ(std::string(state::ConditionName(incidents[0].condition)), "producer_lost");
  EXPECT_EQ(incidents[0].rank, 37u);
}

}  // namespace
}  // namespace lossgauge::fleet
