// The whole page as a file: any change of a name, label, type or number format shows in review.
// LOSSGAUGE_UPDATE_GOLDEN=1 writes it anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "server/export/metrics_page.h"
#include "tests/server/export/snapshot_fixture.h"

namespace lossgauge::export_ {
namespace {

TEST(GoldenPage, IsTheCommittedOne) {
  auto ended = RunOf("ended \"run\"", 1);
  ended->ended = true;
  ended->ended_time_ns = kNow - 5 * kSecond;
  ended->verdict.action = state::Action::kUnknown;
  ended->verdict.reason_codes = {"ended"};
  auto live = RunOf("gpt-small", 2);
  live->incidents = {OpenIncident(state::Condition::kLossSpike, state::Severity::kWarning, "logit_blowup"),
                     OpenIncident(state::Condition::kAccounting, state::Severity::kWarning, "mean_of_means")};
  live->incident_counters.incidents = {{state::Condition::kLossSpike, "logit_blowup", 1}, {state::Condition::kAccounting, "mean_of_means", 1}};
  live->verdict.action = state::Action::kWatch;
  live->verdict.reason_codes = {"loss_spike.logit_blowup"};
  live->verdict.since_ns = kNow - 3 * kSecond;
  live->last_checkpoint = state::ResumePoint{50, "/checkpoints/50"};
  state::Snapshot snapshot = Shot({ended, live});
  snapshot.self.rings_attached = 4;
  snapshot.self.ring_errors["other_major"] = 1;
  snapshot.self.drain_cycles = 1000;
  snapshot.self.drain_lag_seconds = 0.004;

  MetricsPageOptions options;
  options.now_ns = [] { return kNow; };
  options.proc_self = LOSSGAUGE_PROC_FIXTURE;
  options.revision = "0123abc";
  options.monotonic_ns = [] { return std::int64_t{0}; };
  const std::string page =
      std::regex_replace(MetricsPage(options).Render(snapshot), std::regex("compiler=\"[^\"]*\""), "compiler=\"any\"");

  const std::string path = LOSSGAUGE_GOLDEN_PAGE;
  if (std::getenv("LOSSGAUGE_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << page;
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(page, golden.str()) << "differs from " << path;
}

}  // namespace
}  // namespace lossgauge::export_
