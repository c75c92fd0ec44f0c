#include "server/main/observer.h"

#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "server/api/api.h"
#include "server/detect/judge.h"
#include "server/detect/policy.h"
#include "server/export/metrics_page.h"
#include "server/ingest/ring_source.h"
#include "server/main/pipeline.h"
#include "server/main/state_lock.h"
#include "server/rpc/grpc_server.h"
#include "server/state/board.h"
#include "server/state/run_book.h"
#include "server/state/store.h"
#include "server/web/web_server.h"
#include "spdlog/spdlog.h"

namespace lossgauge::main {
namespace {

constexpr std::int64_t kFinalDrainNs = 1'000'000'000;
constexpr std::int64_t kStreamGraceNs = 1'500'000'000;
constexpr std::int64_t kGoneForGoodNs = 60'000'000'000;  // a launcher starts a lost rank again within seconds, or not at all
constexpr int kBindTries = 6;  // 0.1 + 0.2 + ... s: a predecessor has 5 s to end, but most need less

absl::Status StartPatiently(const std::function<absl::Status()>& start) {
  absl::Status status;
  auto pause = std::chrono::milliseconds(100);
  for (int i = 0; i < kBindTries; ++i) {
    status = start();
    if (status.code() != absl::StatusCode::kUnavailable) return status;
    if (i == 0) spdlog::warn("{}; trying again", std::string(status.message()));
    if (i + 1 < kBindTries) std::this_thread::sleep_for(pause);
    pause *= 2;
  }
  return status;
}

absl::StatusOr<std::unique_ptr<state::JudgeFactory>> MakeJudges(const Flags& flags) {
  detect::PolicySet policies = detect::DefaultPolicies();
  if (!flags.policy.empty()) {
    auto loaded = detect::LoadPolicy(flags.policy);
    if (!loaded.ok()) return loaded.status();
    policies = *std::move(loaded);
  }
  if (flags.mode == "shadow") {
    policies.defaults.mode = flags.mode;
    for (auto& [run, policy] : policies.runs) policy.mode = flags.mode;
  }
  return std::unique_ptr<state::JudgeFactory>(std::make_unique<detect::DetectorJudgeFactory>(std::move(policies)));
}

}  // namespace

struct Observer::Parts {
  state::SystemClock clock;
  std::unique_ptr<state::JudgeFactory> judges;
  std::unique_ptr<state::Store> store;
  state::SnapshotBoard board;
  state::Mailbox mailbox;
  std::unique_ptr<state::RunBook> book;
  std::unique_ptr<ingest::RingSource> rings;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<api::Api> api;
  export_::MetricsPage metrics;
  std::unique_ptr<rpc::GrpcServer> grpc;
  std::unique_ptr<web::WebServer> web;
};

Observer::Observer(Flags flags) : flags_(std::move(flags)), parts_(std::make_unique<Parts>()) {}
Observer::~Observer() { Shutdown(); }

absl::Status Observer::Start() {
  Parts& p = *parts_;
  auto judges = MakeJudges(flags_);
  if (!judges.ok()) return judges.status();
  p.judges = *std::move(judges);

  state::StoreOptions store_options;
  store_options.directory = flags_.state_dir;
  store_options.max_bytes = flags_.history_bytes;
  store_options.full_age_ns = flags_.history_full_ns;
  store_options.max_age_ns = flags_.history_age_ns;
  if (!flags_.state_dir.empty()) {
    // Before the database is looked at: what another process is writing must not be taken for damaged.
    if (const absl::Status status = state::MakeStateDirectory(flags_.state_dir); !status.ok()) return status;
    if (const absl::Status status = LockStateDirectory(flags_.state_dir); !status.ok()) return status;
  }
  auto store = state::Store::Open(store_options);
  if (!store.ok()) return store.status();
  p.store = *std::move(store);
  if (!p.store->open_note().empty()) spdlog::error("{}", p.store->open_note());

  state::RunBookOptions book_options;
  book_options.run.join.join_timeout_ns = flags_.join_timeout_ns;
  book_options.run.join.max_ranks = flags_.max_ranks;
  book_options.max_runs = flags_.max_runs;
  book_options.linger_ns = flags_.linger_ns;
  book_options.lost_linger_ns = flags_.lost_linger_ns;
  book_options.max_recent_steps = flags_.max_steps;
  p.book = std::make_unique<state::RunBook>(book_options, p.judges.get(), p.store.get(), p.clock.NowNs());
  if (const absl::Status status = p.book->Load(p.clock.NowNs()); !status.ok()) return status;
  if (p.book->runs_from_future() > 0) {
    spdlog::warn("the clock was set back: {} runs were last written in what is now the future; their times count as now", p.book->runs_from_future());
  }

  ingest::RingSourceOptions source_options;
  source_options.directories = flags_.ring_dirs;
  source_options.liveness.frozen_after_ns = flags_.frozen_after_ns;
  source_options.reclaim = flags_.reclaim;
  p.rings = std::make_unique<ingest::RingSource>(source_options, &p.clock);
  p.pipeline = std::make_unique<Pipeline>(PipelineOptions{}, &p.clock, p.book.get(), p.store.get(), &p.board, &p.mailbox,
                                          std::vector<state::RecordSource*>{p.rings.get()});
  for (const std::string& directory : flags_.ring_dirs) spdlog::info("watching rings in {}", directory);
  p.pipeline->RunCycle();  // whoever asks first already sees the runs that are here
  p.pipeline->Start();

  p.api = std::make_unique<api::Api>(p.board, p.mailbox, p.store->reader(), p.clock);
  if (flags_.grpc_listen != "none") {
    rpc::GrpcOptions options;
    options.listen = flags_.grpc_listen;
    p.grpc = std::make_unique<rpc::GrpcServer>(options, *p.api);
    if (const absl::Status status = StartPatiently([&] { return p.grpc->Start(); }); !status.ok()) return status;
    spdlog::info("gRPC on {}", p.grpc->address());
  }
  if (flags_.http_listen != "none") {
    web::WebOptions options;
    options.listen = flags_.http_listen;
    options.allowed_hosts = flags_.http_allowed_hosts;
    options.render_metrics = [&p] { return p.metrics.Render(*p.board.Get()); };
    p.web = std::make_unique<web::WebServer>(options, *p.api);
    if (const absl::Status status = StartPatiently([&] { return p.web->Start(); }); !status.ok()) return status;
    spdlog::info("HTTP on {}", p.web->address());
  }
  return absl::OkStatus();
}

absl::Status Observer::ReloadPolicy() {
  if (flags_.policy.empty()) return absl::FailedPreconditionError("no --policy file was given: nothing to read again");
  auto judges = MakeJudges(flags_);
  if (!judges.ok()) return judges.status();
  // Judges belong to the drain thread; what they know goes over from the old ones to the new.
  std::promise<void> done;
  parts_->pipeline->Post([this, &judges, &done] {
    parts_->book->ReplaceJudges(judges->get());
    std::swap(parts_->judges, *judges);
    done.set_value();
  });
  done.get_future().wait();
  return absl::OkStatus();
}

bool Observer::EveryProducerEnded() const {
  bool any = false;
  for (const auto& run : parts_->board.Get()->runs) {
    for (const state::RankView& rank : run->ranks) {
      const state::LivenessReport& liveness = rank.liveness;
      const bool gone = liveness.producer_state == state::ProducerState::kLost && liveness.heartbeat_age_ns >= kGoneForGoodNs;
      if ((liveness.producer_state != state::ProducerState::kEnded && !gone) || !liveness.drained) return false;
      any = true;
    }
  }
  return any;
}

void Observer::Shutdown() {
  Parts& p = *parts_;
  if (p.pipeline) p.pipeline->Stop(kFinalDrainNs);
  if (p.grpc) p.grpc->Shutdown(kStreamGraceNs);
  if (p.web) p.web->Shutdown();
  p.board.Close();
  p.web.reset();
  p.grpc.reset();
}

}  // namespace lossgauge::main
