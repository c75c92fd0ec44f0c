// Which series there are: of runs that end, of many runs, many ranks, two replicas, and names that clash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/export/metrics_page_fixture.h"

namespace lossgauge::export_ {
namespace {

using ::testing::Optional;

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

}  // namespace
}  // namespace lossgauge::export_
