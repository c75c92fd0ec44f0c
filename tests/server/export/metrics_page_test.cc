#include "server/export/metrics_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "tests/server/export/page_reader.h"
#include "tests/server/export/snapshot_fixture.h"

namespace lossgauge::export_ {
namespace {

using ::testing::Optional;

MetricsPageOptions Options() {
  MetricsPageOptions options;
  options.proc_self = LOSSGAUGE_PROC_FIXTURE;
  options.monotonic_ns = [] { return std::int64_t{0}; };
  options.now_ns = [] { return kNow; };
  return options;
}

PageReader Render(const state::Snapshot& snapshot) { return PageReader(MetricsPage(Options()).Render(snapshot)); }

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

TEST(MetricsPage, DropsGaugesAtOnceWhenARunEndsAndKeepsCountersAndVerdict) {
  auto run = RunOf("a", 2);
  run->incidents = {OpenIncident(state::Condition::kLossSpike, state::Severity::kWarning)};
  ASSERT_EQ(Render(Shot({run})).CountPrefix("lossgauge_loss_nats{"), 2u);
  run->ended = true;
  run->ended_time_ns = kNow - kSecond;
  run->verdict.action = state::Action::kUnknown;
  const PageReader page = Render(Shot({run}));
  for (const char* gone : {"lossgauge_loss_nats", "lossgauge_run_loss_nats", "lossgauge_step{", "lossgauge_run_step", "lossgauge_grad_norm",
                           "lossgauge_producer_", "lossgauge_run_phase", "lossgauge_run_last_step", "lossgauge_last_"}) {
    for (const auto& [series, value] : page.all()) {
      if (series.find("_total") != std::string::npos) continue;
      EXPECT_NE(series.compare(0, std::string(gone).size(), gone), 0) << series;
    }
  }
  EXPECT_THAT(page.Get("lossgauge_nll_nats_total{run=\"a\",rank=\"1\"}"), Optional(225000));
  EXPECT_THAT(page.Get("lossgauge_verdict{run=\"a\",action=\"UNKNOWN\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_run_active{run=\"a\"}"), Optional(0));
  EXPECT_THAT(page.Get("lossgauge_run_ended_timestamp_seconds{run=\"a\"}"), Optional(1'699'999'999));
  EXPECT_THAT(page.Get("lossgauge_incidents_open{run=\"a\",condition=\"loss_spike\",severity=\"warning\"}"), Optional(0));
}

TEST(MetricsPage, DropsTheLossOfARankWhoseProcessIsGone) {
  auto run = RunOf("a", 2);
  run->ranks[1].liveness.producer_state = state::ProducerState::kLost;
  const PageReader page = Render(Shot({run}));
  EXPECT_EQ(page.CountPrefix("lossgauge_loss_nats{"), 1u);
  EXPECT_THAT(page.Get("lossgauge_producer_up{run=\"a\",rank=\"1\"}"), Optional(0));
  EXPECT_THAT(page.Get("lossgauge_producer_state{run=\"a\",rank=\"1\",state=\"lost\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_producer_up{run=\"a\",rank=\"0\"}"), Optional(1));
}

TEST(MetricsPage, DropsTheLossOfARunWhoseProcessesAreAllGoneAndStillCallsItActive) {
  auto run = RunOf("a", 2);
  for (state::RankView& rank : run->ranks) rank.liveness.producer_state = state::ProducerState::kLost;
  const PageReader page = Render(Shot({run}));
  EXPECT_EQ(page.CountPrefix("lossgauge_run_loss_nats"), 0u);
  EXPECT_EQ(page.CountPrefix("lossgauge_run_last_step"), 0u);
  EXPECT_THAT(page.Get("lossgauge_run_active{run=\"a\"}"), Optional(1));
  EXPECT_THAT(page.Get("lossgauge_run_nll_nats_total{run=\"a\"}"), Optional(225000));
}

TEST(MetricsPage, IsBoundedByLiveRunsAfterManyShortOnes) {
  const std::size_t one = Render(Shot({RunOf("only", 1)})).size();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(Render(Shot({RunOf("run-" + std::to_string(i), 1)})).size(), one);
}

TEST(MetricsPage, HasAsManySeriesAfterAThousandRestartsAsAfterOne) {
  auto run = RunOf("a", 8);
  const std::size_t once = Render(Shot({run})).size();
  for (int i = 0; i < 1000; ++i) run->attempts.push_back(state::AttemptView{.attempt = "attempt-" + std::to_string(i)});
  for (state::RankView& rank : run->ranks) {
    auto producer = std::make_shared<state::ProducerInfo>(*rank.producer);
    producer->attempt = "attempt-999";
    rank.producer = producer;
  }
  EXPECT_EQ(Render(Shot({run})).size(), once);
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

TEST(MetricsPage, ShowsTheSameToTwoReplicasAndACurlBetweenThem) {
  const state::Snapshot snapshot = Shot({RunOf("a", 2)});
  MetricsPage page(Options());
  const auto without_scrapes = [](const std::string& text) {
    std::map<std::string, double> series = PageReader(text).all();
    std::erase_if(series, [](const auto& entry) { return entry.first.compare(0, 16, "lossgauge_scrape") == 0; });
    return series;
  };
  const auto first = without_scrapes(page.Render(snapshot));
  page.Render(snapshot);
  EXPECT_EQ(without_scrapes(page.Render(snapshot)), first);
  EXPECT_THAT(first.at("lossgauge_run_loss_nats_max_60s{run=\"a\"}"), 5.5);
}

TEST(MetricsPage, ExportsRunsAloneWhereThereAreTooManyRanksAndSaysSo) {
  MetricsPageOptions options = Options();
  options.max_ranks = 4;
  MetricsPage page(options);
  const PageReader reader(page.Render(Shot({RunOf("big", 4), RunOf("small", 2)})));
  EXPECT_EQ(reader.CountPrefix("lossgauge_loss_nats{run=\"big\""), 0u);
  EXPECT_EQ(reader.CountPrefix("lossgauge_loss_nats{run=\"small\""), 2u);
  EXPECT_THAT(reader.Get("lossgauge_run_loss_nats{run=\"big\"}"), Optional(2.25));
  EXPECT_THAT(reader.Get("lossgauge_run_nll_nats_total{run=\"big\"}"), Optional(225000));
  EXPECT_THAT(reader.Get("lossgauge_ranks_not_exported"), Optional(4));
}

// A sidecar that forwards, and the daemon: each series of a run is on one of their pages.
TEST(MetricsPage, LeavesToADaemonWhatTheDaemonShows) {
  auto small = RunOf("small", 2), large = RunOf("large", 2);
  large->layout.world_size = 501;  // the other 499 are on other nodes
  MetricsPageOptions options = Options();
  options.leave_runs_to_daemon = true;
  const PageReader page(MetricsPage(options).Render(Shot({small, large})));
  EXPECT_EQ(page.Get("lossgauge_run_step{run=\"small\"}"), std::nullopt);
  EXPECT_EQ(page.Get("lossgauge_step{run=\"small\",rank=\"1\"}"), std::nullopt);
  EXPECT_EQ(page.Get("lossgauge_run_step{run=\"large\"}"), std::nullopt);
  EXPECT_EQ(page.Get("lossgauge_verdict{run=\"large\",action=\"CONTINUE\"}"), std::nullopt);
  EXPECT_THAT(page.Get("lossgauge_step{run=\"large\",rank=\"1\"}"), Optional(99));
  EXPECT_THAT(page.Get("lossgauge_runs{state=\"active\"}"), Optional(2)) << "it knows them all the same";
  large->ranks_left_out = 499;
  const PageReader daemon = Render(Shot({small, large}));
  EXPECT_THAT(daemon.Get("lossgauge_run_step{run=\"large\"}"), ::testing::Ne(std::nullopt));
  EXPECT_EQ(daemon.Get("lossgauge_step{run=\"large\",rank=\"1\"}"), std::nullopt);
  EXPECT_THAT(daemon.Get("lossgauge_step{run=\"small\",rank=\"1\"}"), Optional(99));
}

TEST(MetricsPage, StaysValidWhenTwoRunsOrTwoRanksClaimOneName) {
  auto twice = RunOf("a", 2);
  twice->ranks[1].rank = 0;
  MetricsPage page(Options());
  const state::Snapshot snapshot = Shot({twice, RunOf("a", 1)});
  const PageReader first(page.Render(snapshot));  // throws on a duplicate series
  EXPECT_EQ(first.CountPrefix("lossgauge_run_loss_nats{"), 2u);  // the second run got a name of its own
  const PageReader second(page.Render(snapshot));
  EXPECT_THAT(second.Get("lossgauge_duplicates_dropped_total{kind=\"rank\"}"), Optional(1));
}

TEST(MetricsPage, NamesNoLabelThatATargetMayCarry) {
  const std::string text = MetricsPage(Options()).Render(Shot({RunOf("a", 1)}));
  for (const char* label : {"job", "instance", "pod", "namespace", "container", "node", "service", "endpoint", "attempt", "pid", "step"}) {
    EXPECT_EQ(text.find("{" + std::string(label) + "=\""), std::string::npos) << label;
    EXPECT_EQ(text.find("," + std::string(label) + "=\""), std::string::npos) << label;
  }
}

TEST(MetricsPage, TellsTimesByTheClockOfTheSnapshot) {
  const PageReader page = Render(Shot({RunOf("a", 1)}));
  EXPECT_THAT(page.Get("lossgauge_run_last_step_timestamp_seconds{run=\"a\"}"), Optional(1'699'999'999));
  EXPECT_THAT(page.Get("lossgauge_last_heartbeat_timestamp_seconds{run=\"a\",rank=\"0\"}"), Optional(1'699'999'999.5));
  EXPECT_THAT(page.Get("lossgauge_snapshot_timestamp_seconds"), Optional(1'700'000'000));
}

TEST(MetricsPage, MeasuresItself) {
  MetricsPageOptions options = Options();
  auto now = std::make_shared<std::int64_t>(0);
  options.monotonic_ns = [now] { return *now += 1'000'000; };
  MetricsPage page(options);
  const std::string first = page.Render(Shot({}));
  EXPECT_EQ(PageReader(first).Get("lossgauge_scrape_bytes"), std::nullopt);  // there was no page before it
  const PageReader second(page.Render(Shot({})));
  EXPECT_THAT(second.Get("lossgauge_scrapes_total"), Optional(1));
  EXPECT_THAT(second.Get("lossgauge_scrape_seconds_total"), Optional(0.001));
  EXPECT_THAT(second.Get("lossgauge_scrape_bytes"), Optional(static_cast<double>(first.size())));
}

TEST(MetricsPage, ReadsTheProcessFromProc) {
  const PageReader page = Render(Shot({}));
  EXPECT_THAT(page.Get("process_cpu_seconds_total"), Optional(4));
  EXPECT_THAT(page.Get("process_threads"), Optional(6));
  EXPECT_THAT(page.Get("process_resident_memory_bytes"), Optional(4096.0 * 4096));
  EXPECT_THAT(page.Get("process_open_fds"), Optional(4));
  EXPECT_THAT(page.Get("process_max_fds"), Optional(1024));
}

TEST(MetricsPage, LosesOnlyTheProcessSeriesWhereProcCannotBeRead) {
  MetricsPageOptions options = Options();
  options.proc_self = "/nonexistent";
  const PageReader page(MetricsPage(options).Render(Shot({RunOf("a", 1)})));
  EXPECT_EQ(page.CountPrefix("process_open_fds"), 0u);
  EXPECT_THAT(page.Get("lossgauge_loss_nats{run=\"a\",rank=\"0\"}"), Optional(2.25));
}

TEST(MetricsPage, BoundsCausesThatAnotherPartHandsIn) {
  state::Snapshot snapshot = Shot({});
  for (int i = 0; i < 1000; ++i) snapshot.self.ring_errors["cause-" + std::to_string(i)] = 1;
  const PageReader page = Render(snapshot);
  EXPECT_LE(page.CountPrefix("lossgauge_ring_errors_total{"), 33u);
  double sum = 0;
  for (const auto& [series, value] : page.all()) {
    if (series.compare(0, 28, "lossgauge_ring_errors_total{") == 0) sum += value;
  }
  EXPECT_EQ(sum, 1000);
}

TEST(MetricsPage, MayBeRenderedByManyThreadsAtOnce) {
  MetricsPage page(Options());
  const state::Snapshot snapshot = Shot({RunOf("a", 4)});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) PageReader(page.Render(snapshot));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(PageReader(page.Render(snapshot)).Get("lossgauge_scrapes_total"), Optional(80));
}

// Between sidecars and daemons: each side has its own series, and who does neither has none.
TEST(MetricsPage, ShowsForwardingOfWhoForwards) {
  state::Snapshot snapshot = Shot({});
  const auto text = [&snapshot] { return MetricsPage(Options()).Render(snapshot); };
  EXPECT_EQ(text().find("lossgauge_forward_"), std::string::npos);
  EXPECT_EQ(text().find("lossgauge_ingest_"), std::string::npos);
  snapshot.self.forward.emplace();
  snapshot.self.forward->targets = {{"10.0.0.1:9789", true, 100, 90, 0, 1}, {"10.0.0.2:9789", false, 40, 30, 7, 3}};
  snapshot.self.forward->spool_bytes = 4096;
  snapshot.self.ingest = {{"senders", 2}, {"refused/bad_record", 5}};
  const std::string page = text();
  for (const char* line : {"lossgauge_forward_records_acknowledged_total{daemon=\"1\"} 90\n", "lossgauge_forward_connected{daemon=\"1\"} 1\n", "lossgauge_forward_connected{daemon=\"2\"} 0\n",
                           "lossgauge_forward_records_dropped_total{daemon=\"2\"} 7\n", "lossgauge_forward_spool_bytes 4096\n", "lossgauge_ingest_senders 2\n",
                           "lossgauge_ingest_refused_total{cause=\"bad_record\"} 5\n", "lossgauge_ingest_refused_total{cause=\"second_sender\"} 0\n"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(page.find("10.0.0.1"), std::string::npos);
}

}  // namespace
}  // namespace lossgauge::export_
