// What a rank and a run show: their last step, what is absent, verdict, incidents and exact sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/server/export/metrics_page_fixture.h"

namespace lossgauge::export_ {
namespace {

using ::testing::Optional;

TEST(MetricsPage, ShowsARanksLastStepFromItsOwnRecord) {
  const PageReader page = Render(Shot({RunOf("a", 2)}));
  EXPECT_THAT(page.Get("lossgauge_step{run=\"a\",rank=\"1\"}"), Optional(99));
  EXPECT_THAT(page.Get("lossgauge_loss_nats{run=\"a\",rank=\"1\"}"), Optional(2.25));
  EXPECT_NEAR(*page.Get("lossgauge_perplexity{run=\"a\",rank=\"1\"}"), std::exp(2.25), 1e-12);
  EXPECT_NEAR(*page.Get("lossgauge_bits_per_byte{run=\"a\",rank=\"1\"}"), 2200 / (std::log(2) * 4000), 1e-15);
  EXPECT_THAT(page.Get("lossgauge_log_z_nats{run=\"a\",rank=\"1\"}"), Optional(10.5));
  EXPECT_THAT(page.Get("lossgauge_max_abs_logit{run=\"a\",rank=\"1\"}"), Optional(31.25));
  EXPECT_THAT(page.Get("lossgauge_logit_grad_norm{run=\"a\",rank=\"1\"}"), Optional(0.5));
  EXPECT_EQ(page.Get("lossgauge_head_grad_norm{run=\"a\",rank=\"1\"}"), std::nullopt) << "its head is not computed with the loss";
}

TEST(MetricsPage, ShowsTheGradientsOfAHeadThatIsComputedWithTheLoss) {
  auto run = RunOf("a", 1);
  lg_step_record& record = run->ranks[0].last_sample->record;
  record.present |= LG_HAS_HIDDEN_GRAD | LG_HAS_HEAD_GRAD;
  record.hidden_grad_sq_sum = lg_fixed128_from_double(std::pow(0.25 * record.denominator_min, 2));
  record.head_grad_sq_sum = lg_fixed128_from_double(std::pow(3 * record.denominator_min, 2));
  const PageReader page = Render(Shot({run}));
  EXPECT_THAT(page.Get("lossgauge_hidden_grad_norm{run=\"a\",rank=\"0\"}"), Optional(0.25));
  EXPECT_THAT(page.Get("lossgauge_head_grad_norm{run=\"a\",rank=\"0\"}"), Optional(3.0));
}

TEST(MetricsPage, SaysWhereARankStandsAndWhatItContributesToItsTensorGroup) {
  auto run = RunOf("a", 1);
  auto producer = std::make_shared<state::ProducerInfo>(*run->ranks[0].producer);
  producer->layout.dp = {4, 3};
  producer->layout.tp = {2, 1};
  producer->layout.cp = {2, 1};
  producer->layout.shard_columns = 25000;
  run->ranks[0].producer = producer;
  lg_step_record& record = run->ranks[0].last_sample->record;
  record.probability_mass = lg_fixed128_from_int64(499);
  record.target_hits = 510;
  record.present |= LG_HAS_EXCHANGE;
  record.exchange_bad_rows = 7;
  record.denominator_max = 2000;
  const PageReader page = Render(Shot({run}));
  EXPECT_THAT(page.Get("lossgauge_rank_info{run=\"a\",rank=\"0\",tensor_group=\"dp3 cp1\",shard=\"1\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_shard_columns{run=\"a\",rank=\"0\"}"), Optional(25000));
  EXPECT_THAT(page.Get("lossgauge_run_vocab_size{run=\"a\"}"), Optional(50257));
  EXPECT_THAT(page.Get("lossgauge_step_finite_tokens{run=\"a\",rank=\"0\"}"), Optional(1000));
  EXPECT_THAT(page.Get("lossgauge_probability_mass_tokens{run=\"a\",rank=\"0\"}"), Optional(499));
  EXPECT_THAT(page.Get("lossgauge_target_hits{run=\"a\",rank=\"0\"}"), Optional(510));
  EXPECT_THAT(page.Get("lossgauge_exchange_bad_rows{run=\"a\",rank=\"0\"}"), Optional(7));
  EXPECT_THAT(page.Get("lossgauge_denominator_min_tokens{run=\"a\",rank=\"0\"}"), Optional(1000));
  EXPECT_THAT(page.Get("lossgauge_denominator_max_tokens{run=\"a\",rank=\"0\"}"), Optional(2000));
}

TEST(MetricsPage, HasEveryCounterAtZeroBeforeTheFirstEvent) {
  auto run = std::make_shared<state::RunSnapshot>();
  run->run = "new";
  run->ranks.push_back(state::RankView{});
  const PageReader page = Render(Shot({run}));
  for (const char* series : {
           "lossgauge_nll_nats_total{run=\"new\",rank=\"0\"}", "lossgauge_finite_tokens_total{run=\"new\",rank=\"0\"}",
           "lossgauge_unmasked_tokens_total{run=\"new\",rank=\"0\"}", "lossgauge_target_bytes_total{run=\"new\",rank=\"0\"}",
           "lossgauge_steps_total{run=\"new\",rank=\"0\"}", "lossgauge_nonfinite_rows_total{run=\"new\",rank=\"0\"}",
           "lossgauge_run_nonfinite_steps_total{run=\"new\"}", "lossgauge_records_lost_total{run=\"new\",rank=\"0\",reason=\"torn\"}",
           "lossgauge_run_records_lost_total{run=\"new\",reason=\"overrun\"}", "lossgauge_spikes_total{run=\"new\",cause=\"logit_blowup\"}",
           "lossgauge_spikes_total{run=\"new\",cause=\"unexplained\"}",
           "lossgauge_reduction_mismatches_total{run=\"new\",kind=\"mean_of_means\"}",
           "lossgauge_reduction_mismatches_total{run=\"new\",kind=\"mass\"}",
           "lossgauge_incidents_total{run=\"new\",condition=\"records_lost\"}",
           "lossgauge_incidents_open{run=\"new\",condition=\"nonfinite\",severity=\"critical\"}",
           "lossgauge_ring_errors_total{cause=\"other_major\"}", "lossgauge_state_write_errors_total"}) {
    EXPECT_THAT(page.Get(series), Optional(0.0)) << series;
  }
}

TEST(MetricsPage, ShowsNoLossForAStepWhoseTokensAreAllMasked) {
  auto run = RunOf("a", 1);
  lg_step_record& record = run->ranks[0].last_sample->record;
  record.finite_tokens = record.unmasked_tokens = 0;
  record.nll_sum = record.scored_nll_sum = {};
  record.target_bytes = 0;
  record.denominator_min = record.denominator_max = 0;
  const PageReader page = Render(Shot({run}));
  for (const char* name : {"loss_nats", "perplexity", "bits_per_byte", "log_z_nats", "logit_grad_norm"}) {
    EXPECT_EQ(page.Get("lossgauge_" + std::string(name) + "{run=\"a\",rank=\"0\"}"), std::nullopt) << name;
  }
  EXPECT_THAT(page.Get("lossgauge_step{run=\"a\",rank=\"0\"}"), Optional(99));
  EXPECT_THAT(page.Get("lossgauge_step_unmasked_tokens{run=\"a\",rank=\"0\"}"), Optional(0));
}

TEST(MetricsPage, ShowsNoLossSeriesForAPipelineStageWithoutAHead) {
  auto run = RunOf("a", 2);
  auto producer = Producer("a", 0, 2);
  producer->layout.has_loss = 0;
  run->ranks[0].producer = producer;
  run->ranks[0].last_sample->record.present = LG_HAS_GRAD_NORM;
  const PageReader page = Render(Shot({run}));
  EXPECT_EQ(page.Get("lossgauge_loss_nats{run=\"a\",rank=\"0\"}"), std::nullopt);
  EXPECT_EQ(page.Get("lossgauge_nll_nats_total{run=\"a\",rank=\"0\"}"), std::nullopt);
  EXPECT_THAT(page.Get("lossgauge_grad_norm{run=\"a\",rank=\"0\"}"), Optional(0.75));
  EXPECT_THAT(page.Get("lossgauge_steps_total{run=\"a\",rank=\"0\"}"), Optional(100));
  EXPECT_THAT(page.Get("lossgauge_loss_nats{run=\"a\",rank=\"1\"}"), Optional(2.25));
}

TEST(MetricsPage, LeavesOffWhatIsNotFiniteAndKeepsTheRest) {
  auto run = RunOf("a", 1);
  run->ranks[0].last_sample->record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  run->max_60s.loss_nats = std::numeric_limits<double>::infinity();
  const PageReader page = Render(Shot({run}));  // throws on NaN or Inf
  EXPECT_EQ(page.Get("lossgauge_grad_norm{run=\"a\",rank=\"0\"}"), std::nullopt);
  EXPECT_EQ(page.Get("lossgauge_run_loss_nats_max_60s{run=\"a\"}"), std::nullopt);
  EXPECT_THAT(page.Get("lossgauge_loss_nats{run=\"a\",rank=\"0\"}"), Optional(2.25));
}

TEST(MetricsPage, ShowsNoPlaceholderOfAStatusLine) {
  auto run = RunOf("a", 1);
  run->ranks[0].liveness.published_step = -1;
  run->ranks[0].last_sample.reset();
  run->last_step.reset();
  const PageReader page = Render(Shot({run}));
  EXPECT_EQ(page.Get("lossgauge_published_step{run=\"a\",rank=\"0\"}"), std::nullopt);
  EXPECT_EQ(page.CountPrefix("lossgauge_step{"), 0u);
  EXPECT_EQ(page.CountPrefix("lossgauge_run_step{"), 0u);
}

TEST(MetricsPage, GivesExactlyOneActionAndEachReasonOnce) {
  auto run = RunOf("a", 1);
  run->verdict.action = state::Action::kRestart;
  run->verdict.reason_codes = {"nonfinite", "nonfinite", "producer_lost"};
  const PageReader page = Render(Shot({run}));
  EXPECT_THAT(page.Get("lossgauge_verdict{run=\"a\",action=\"RESTART\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_verdict{run=\"a\",action=\"CONTINUE\"}"), Optional(0));
  EXPECT_EQ(page.CountPrefix("lossgauge_verdict_reason{"), 2u);
  EXPECT_THAT(page.Get("lossgauge_verdict_reason{run=\"a\",action=\"RESTART\",reason=\"nonfinite\"}"), Optional(1));
}

TEST(MetricsPage, ShowsAVerdictPastItsTermAsUnknown) {
  for (const state::Action action : {state::Action::kContinue, state::Action::kRestart}) {
    auto run = RunOf("a", 1);
    run->verdict.action = action;
    MetricsPageOptions options = Options();
    const std::string given = "lossgauge_verdict{run=\"a\",action=\"" + std::string(state::ActionName(action)) + "\"}";
    options.now_ns = [&] { return run->verdict.valid_until_ns - 1; };
    EXPECT_THAT(PageReader(MetricsPage(options).Render(Shot({run}))).Get(given), Optional(1));
    options.now_ns = [&] { return run->verdict.valid_until_ns; };
    const PageReader page(MetricsPage(options).Render(Shot({run})));
    EXPECT_THAT(page.Get(given), Optional(0));
    EXPECT_THAT(page.Get("lossgauge_verdict{run=\"a\",action=\"UNKNOWN\"}"), Optional(1));
    EXPECT_THAT(page.Get("lossgauge_verdict_reason{run=\"a\",action=\"UNKNOWN\",reason=\"stale\"}"), Optional(1));
  }
}

TEST(MetricsPage, CountsHiddenIncidentsApartFromOpenOnes) {
  auto run = RunOf("a", 1);
  run->incidents = {OpenIncident(state::Condition::kProducerLost, state::Severity::kCritical),
                    OpenIncident(state::Condition::kRankMissing, state::Severity::kWarning),
                    OpenIncident(state::Condition::kIntegrity, state::Severity::kCritical, "mass"),
                    OpenIncident(state::Condition::kStall, state::Severity::kCritical)};
  run->incidents[1].hidden_by = "x-1";
  run->incidents[3].open = false;
  const PageReader page = Render(Shot({run}));
  EXPECT_THAT(page.Get("lossgauge_incidents_open{run=\"a\",condition=\"producer_lost\",severity=\"critical\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_incidents_open{run=\"a\",condition=\"rank_missing\",severity=\"warning\"}"), Optional(0));
  EXPECT_THAT(page.Get("lossgauge_incidents_open{run=\"a\",condition=\"stall\",severity=\"critical\"}"), Optional(0));
  EXPECT_THAT(page.Get("lossgauge_incidents_hidden{run=\"a\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_reduction_mismatches_open{run=\"a\",kind=\"mass\"}"), Optional(1));
}

TEST(MetricsPage, CountsSpikesByCauseMismatchesByKindAndNeverLosesAnUnknownKind) {
  auto run = RunOf("a", 1);
  run->incident_counters.incidents = {{state::Condition::kLossSpike, "data", 3},       {state::Condition::kLossSpike, "new cause", 1},
                                      {state::Condition::kAccounting, "denominator", 2}, {state::Condition::kIntegrity, "mass", 4},
                                      {state::Condition::kBlip, "data", 9}};
  const PageReader page = Render(Shot({run}));
  EXPECT_THAT(page.Get("lossgauge_spikes_total{run=\"a\",cause=\"data\"}"), Optional(3));
  EXPECT_THAT(page.Get("lossgauge_spikes_total{run=\"a\",cause=\"other\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_reduction_mismatches_total{run=\"a\",kind=\"denominator\"}"), Optional(2));
  EXPECT_THAT(page.Get("lossgauge_reduction_mismatches_total{run=\"a\",kind=\"mass\"}"), Optional(4));
  EXPECT_THAT(page.Get("lossgauge_incidents_total{run=\"a\",condition=\"loss_spike\"}"), Optional(4));
}

TEST(MetricsPage, RoundsExactSumsOnceAndOnlyAtTheEnd) {
  auto run = RunOf("a", 1);
  // 2^53 + 1 lies half-way between two doubles; the last step of the fixed point decides. Rounding the halves one by one gives ...992.
  run->ranks[0].totals.nll_sum = lg_fixed128_make((std::int64_t{1} << 53) + 1, 1);
  EXPECT_THAT(Render(Shot({run})).Get("lossgauge_nll_nats_total{run=\"a\",rank=\"0\"}"), Optional(9007199254740994.0));
}

}  // namespace
}  // namespace lossgauge::export_
