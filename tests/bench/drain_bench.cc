// Drain rates of the sidecar on one core. Rings are filled between the timed parts, so that what is timed is the reader alone.
//
//   drain_bench [--seconds=3] [--directory=DIR for the state]
//
// 1. drain:    copy, checksum, validate, join (no detectors, nothing written)
// 2. pipeline: the same, with the real detectors, verdict, one SQLite transaction a cycle, and a snapshot published
// 3. thinning: the steps of 2 once they are old, as the drain thread does it, and what a step takes on disk before and after
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/detect/judge.h"
#include "server/detect/policy.h"
#include "server/ingest/ring_source.h"
#include "server/main/pipeline.h"
#include "server/state/run_book.h"
#include "spdlog/spdlog.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_judge.h"
#include "tests/server/fake_producer.h"

namespace {

using lossgauge::testing::FakeProducer;
namespace state = lossgauge::state;

struct QuietJudge final : state::RunJudge {
  void OnStep(const state::JoinedStep&) override {}
  void OnEvent(const state::ProducerEvent&) override {}
  void OnLoss(const state::LossReport&) override {}
  void OnPresence(const state::Presence&) override {}
  void OnAction(const state::LedgerEntry&) override {}
  bool Acknowledge(const std::string&, const state::Acknowledgement&) override { return false; }
  state::Verdict Evaluate(state::TimeNs) const override { return {}; }
  std::vector<state::Incident> Incidents() const override { return {}; }
  std::vector<state::Incident> TakeChangedIncidents() override { return {}; }
  Counters counters() const override { return {}; }
  std::string Save() const override { return {}; }
  absl::Status Restore(std::string_view) override { return absl::OkStatus(); }
};
struct QuietJudges final : state::JudgeFactory {
  std::unique_ptr<state::RunJudge> MakeJudge(const std::string&) override { return std::make_unique<QuietJudge>(); }
};

class Job {
 public:
  Job(const std::string& directory, std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      lossgauge::testing::FakeProducerOptions options;
      options.directory = directory;
      options.run = "bench" + std::to_string(ranks);
      options.rank = rank;
      options.world_size = ranks;
      producers_.push_back(std::make_unique<FakeProducer>(options));
    }
  }
  void Fill() {
    for (int i = 0; i < 500; ++i, ++step_) {
      for (auto& producer : producers_) producer->PublishStep(step_);
    }
    for (auto& producer : producers_) producer->Beat();
  }
  std::uint64_t filled() const { return 500 * producers_.size(); }

 private:
  std::vector<std::unique_ptr<FakeProducer>> producers_;
  std::int64_t step_ = 0;
};

double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Thread CPU time, so that a busy machine does not change the figure.
void Report(const char* what, std::uint32_t ranks, std::uint64_t records, double seconds) {
  std::printf("%-9s %u rank%s: %9.0f records/s (%.2f us a record, %llu records in %.2f s of one core)\n", what, ranks, ranks == 1 ? " " : "s",
              static_cast<double>(records) / seconds, 1e6 * seconds / static_cast<double>(records), static_cast<unsigned long long>(records),
              seconds);
}

void BenchDrain(std::uint32_t ranks, double seconds) {
  lossgauge::ScratchDirectory rings;
  state::SystemClock clock;
  QuietJudges judges;
  auto store = state::Store::Open({});
  if (!store.ok()) std::abort();
  state::RunBook book({}, &judges, store->get(), clock.NowNs());
  lossgauge::ingest::RingSourceOptions options;
  options.directories = {rings.path()};
  lossgauge::ingest::RingSource source(options, &clock);
  Job job(rings.path(), ranks);
  double used = 0;
  std::uint64_t records = 0;
  while (used < seconds) {
    job.Fill();
    const double begin = CpuSeconds();
    while (source.Poll(book, book, clock.NowNs()).more) {
    }
    book.Advance(clock.NowNs(), true);
    used += CpuSeconds() - begin;
    records += job.filled();
    book.OnCommitted();
    (void)book.BuildSnapshot(clock.NowNs(), {});
  }
  Report("drain", ranks, records, used);
}

void BenchThinning(std::uint32_t ranks, std::uint64_t steps, state::Store* store, state::TimeNs now_ns) {
  const std::uint64_t before = store->bytes();
  std::vector<double> calls;
  const double begin = CpuSeconds();
  for (bool more = true; more;) {
    const double call_begin = CpuSeconds();
    const auto result = store->Prune(now_ns + state::StoreOptions().full_age_ns + 1'000'000'000);
    calls.push_back(CpuSeconds() - call_begin);
    if (!result.ok()) std::abort();
    more = *result;
  }
  const double seconds = CpuSeconds() - begin;
  std::sort(calls.begin(), calls.end());
  std::printf("thinning  %u rank%s: %.2f us a step; a call %.1f ms, the longest %.1f ms; on disk %.0f bytes a step before, %.1f after\n", ranks,
              ranks == 1 ? " " : "s", 1e6 * seconds / static_cast<double>(store->history_counts().thinned), 1e3 * calls[calls.size() / 2],
              1e3 * calls.back(), static_cast<double>(before) / static_cast<double>(steps),
              static_cast<double>(store->bytes()) / static_cast<double>(steps));
}

void BenchPipeline(std::uint32_t ranks, double seconds, const std::string& directory) {
  lossgauge::ScratchDirectory rings, scratch;
  state::SystemClock clock;
  lossgauge::detect::DetectorJudgeFactory judges(lossgauge::detect::DefaultPolicies());
  state::StoreOptions store_options;
  store_options.directory = directory.empty() ? scratch.path() + "/state" : directory + "/bench" + std::to_string(ranks);
  auto store = state::Store::Open(store_options);
  if (!store.ok()) std::abort();
  state::RunBook book({}, &judges, store->get(), clock.NowNs());
  lossgauge::ingest::RingSourceOptions options;
  options.directories = {rings.path()};
  lossgauge::ingest::RingSource source(options, &clock);
  state::SnapshotBoard board;
  state::Mailbox mailbox;
  lossgauge::main::Pipeline pipeline({}, &clock, &book, store->get(), &board, &mailbox, {&source});
  Job job(rings.path(), ranks);
  double used = 0;
  std::uint64_t records = 0;
  while (used < seconds) {
    job.Fill();
    const double begin = CpuSeconds();
    while (pipeline.RunCycle() == 0) {
    }
    used += CpuSeconds() - begin;
    records += job.filled();
  }
  const double begin = CpuSeconds();
  while (book.HasUncommitted()) pipeline.RunCycle();
  Report("pipeline", ranks, records, used + CpuSeconds() - begin);
  BenchThinning(ranks, records / ranks, store->get(), clock.NowNs());
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 3;
  std::string directory;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--seconds=", 0) == 0) seconds = std::atof(argument.c_str() + 10);
    if (argument.rfind("--directory=", 0) == 0) directory = argument.substr(12);
  }
  spdlog::set_level(spdlog::level::off);
  for (const std::uint32_t ranks : {1u, 8u}) BenchDrain(ranks, seconds);
  for (const std::uint32_t ranks : {1u, 8u}) BenchPipeline(ranks, seconds, directory);
  return 0;
}
