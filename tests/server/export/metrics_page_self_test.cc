// What the process shows of itself, and that many may ask at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/server/export/metrics_page_fixture.h"

namespace lossgauge::export_ {
namespace {

using ::testing::Optional;

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
