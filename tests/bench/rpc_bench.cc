// What a scheduler and a live page wait for, over a real connection on loopback against a board made by hand:
// GetVerdict (target: p99 under 1 ms) and the way of a step from its publication to a WatchSteps client (target: p99 under 20 ms).
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/rpc/grpc_server.h"
#include "tests/server/api/fake_state.h"

namespace lossgauge {
namespace {

using SteadyClock = std::chrono::steady_clock;
using testing::MakeRun;
using testing::MakeSnapshot;
using testing::MakeStep;

constexpr std::uint64_t kStepsKept = 1024;

// A board with one run that moves on by a step at each publication, as the drain thread does it: chunks are shared, only the last is new.
class Board {
 public:
  explicit Board(std::uint64_t runs) {
    run_ = std::make_shared<state::RunSnapshot>(*MakeRun("run", 1, kStepsKept));
    for (std::uint64_t i = 1; i < runs; ++i) others_.push_back(MakeRun("run-" + std::to_string(i), 1, 16));
    Publish();
  }
  std::uint64_t PublishStep() {
    auto run = std::make_shared<state::RunSnapshot>(*run_);
    const std::uint64_t sequence = run->next_sequence++;
    auto step = std::make_shared<const state::StepSummary>(MakeStep(sequence, static_cast<std::int64_t>(sequence) - 1, 2.0));
    run->recent_steps.push_back(std::make_shared<const state::StepChunk>(state::StepChunk{step}));
    run->recent_steps.erase(run->recent_steps.begin());
    run->last_step = step;
    run_ = run;
    Publish();
    return sequence;
  }

  state::SnapshotBoard board;

 private:
  void Publish() {
    std::vector<std::shared_ptr<const state::RunSnapshot>> runs = others_;
    runs.push_back(run_);
    board.Publish(MakeSnapshot(++version_, std::move(runs)));
  }
  std::shared_ptr<const state::RunSnapshot> run_;
  std::vector<std::shared_ptr<const state::RunSnapshot>> others_;
  std::uint64_t version_ = 0;
};

struct Server {
  explicit Server(const state::SnapshotBoard& board) : api(board, mailbox, nullptr, clock), server(Options(), api) {
    if (!server.Start().ok()) std::abort();
    channel = grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials());
  }
  static rpc::GrpcOptions Options() {
    rpc::GrpcOptions options;
    options.listen = "127.0.0.1:0";
    return options;
  }
  state::Mailbox mailbox;
  testing::FakeClock clock;
  api::Api api;
  rpc::GrpcServer server;
  std::shared_ptr<grpc::Channel> channel;
};

void Report(benchmark::State& state, std::vector<double> seconds) {
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double quantile) { return seconds[static_cast<std::size_t>(quantile * static_cast<double>(seconds.size() - 1))] * 1e3; };
  state.counters["p50_ms"] = at(0.5);
  state.counters["p99_ms"] = at(0.99);
  state.counters["max_ms"] = at(1);
}

double Since(SteadyClock::time_point begin) { return std::chrono::duration<double>(SteadyClock::now() - begin).count(); }

// Argument: number of runs on the board.
void BM_GetVerdict(benchmark::State& state) {
  Board board(static_cast<std::uint64_t>(state.range(0)));
  Server server(board.board);
  const auto client = v1::LossGauge::NewStub(server.channel);
  v1::GetVerdictRequest request;
  request.set_run("run");
  v1::Verdict verdict;
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    if (!client->GetVerdict(&context, request, &verdict).ok()) return state.SkipWithError("GetVerdict failed");
  }
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto begin = SteadyClock::now();
    grpc::ClientContext context;
    if (!client->GetVerdict(&context, request, &verdict).ok()) return state.SkipWithError("GetVerdict failed");
    seconds.push_back(Since(begin));
    state.SetIterationTime(seconds.back());
  }
  Report(state, std::move(seconds));
}
BENCHMARK(BM_GetVerdict)->Arg(1)->Arg(64)->Iterations(5000)->UseManualTime()->Unit(benchmark::kMillisecond);

// Argument: number of clients that watch at once. A step is published every 2 ms; measured is the slowest client's arrival of each.
void BM_PublishToWatchSteps(benchmark::State& state) {
  Board board(1);
  Server server(board.board);
  const auto watchers = static_cast<std::size_t>(state.range(0));
  struct Watcher {
    std::unique_ptr<v1::LossGauge::Stub> client;
    grpc::ClientContext context;
    std::thread thread;
  };
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<std::uint64_t> newest(watchers, 0);
  std::vector<std::unique_ptr<Watcher>> open;
  for (std::size_t i = 0; i < watchers; ++i) {
    auto watcher = std::make_unique<Watcher>();
    watcher->client = v1::LossGauge::NewStub(server.channel);
    watcher->thread = std::thread([&, i, one = watcher.get()] {
      v1::WatchStepsRequest request;
      request.set_run("run");
      request.set_after_sequence(kStepsKept - 1);  // one step at once: then it is known to be open
      const auto stream = one->client->WatchSteps(&one->context, request);
      v1::WatchStepsResponse response;
      while (stream->Read(&response)) {
        std::lock_guard lock(mutex);
        newest[i] = response.steps(response.steps_size() - 1).sequence();
        arrived.notify_all();
      }
      stream->Finish();
    });
    open.push_back(std::move(watcher));
  }
  const auto wait_for = [&](std::uint64_t sequence) {
    std::unique_lock lock(mutex);
    return arrived.wait_for(lock, std::chrono::seconds(10), [&] {
      return std::all_of(newest.begin(), newest.end(), [&](std::uint64_t seen) { return seen >= sequence; });
    });
  };
  bool all = wait_for(kStepsKept);
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto begin = SteadyClock::now();
    all = all && wait_for(board.PublishStep());
    seconds.push_back(Since(begin));
    state.SetIterationTime(seconds.back());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (auto& watcher : open) watcher->context.TryCancel();
  for (auto& watcher : open) watcher->thread.join();
  if (!all) return state.SkipWithError("a step did not arrive");
  Report(state, std::move(seconds));
}
BENCHMARK(BM_PublishToWatchSteps)->Arg(1)->Arg(16)->Iterations(2000)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lossgauge

BENCHMARK_MAIN();
