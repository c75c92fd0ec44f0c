#include "server/main/observer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "server/api/api.h"
#include "server/detect/judge.h"
#include "server/detect/policy.h"
#include "server/export/metrics_page.h"
#include "server/ingest/forward_source.h"
#include "server/ingest/forwarding.h"
#include "server/ingest/inbox.h"
#include "server/ingest/ingest_service.h"
#include "server/ingest/ring_source.h"
#include "server/main/pipeline.h"
#include "server/main/service_access.h"
#include "server/main/state_lock.h"
#include "server/main/step_sinks.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/grpc_server.h"
#include "server/state/board.h"
#include "server/state/run_book.h"
#include "server/state/state_directory.h"
#include "server/state/store.h"
#include "server/transport/grpc_credentials.h"
#include "server/transport/token_file.h"
#include "server/web/web_server.h"
#include "spdlog/spdlog.h"

namespace lossgauge::main {
namespace {

constexpr std::int64_t kFinalDrainNs = 1'000'000'000;
constexpr std::int64_t kLastRoundNs = 1'000'000'000;  // of what is sent elsewhere
constexpr std::int64_t kStreamGraceNs = 1'500'000'000;
constexpr auto kPolicyWait = std::chrono::seconds(5);  // of whoever waits for signals, too
constexpr std::int64_t kGoneForGoodNs = 60'000'000'000;  // a launcher starts a lost rank again within seconds, or not at all
constexpr std::int64_t kForwardGraceNs = 500'000'000;
// Sidecars come back within some seconds of a daemon's start (ForwardClientOptions::longest_pause_ns): so long a step waits for all its ranks.
constexpr std::int64_t kReturnNs = std::int64_t{10} * 1'000'000'000;
constexpr std::size_t kInboxBytes = std::size_t{64} << 20;
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

std::string NodeName() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == 0) return "unknown";
  return name;
}

state::RunBookOptions BookOptions(const Flags& flags, state::TimeNs now_ns) {
  state::RunBookOptions options;
  options.run.join.join_timeout_ns = flags.join_timeout_ns;
  options.run.join.max_ranks = flags.max_ranks;
  options.run.max_rank_series = flags.max_rank_series;
  options.run.journal.on = flags.journal_bytes > 0;
  options.max_runs = flags.max_runs;
  options.linger_ns = flags.linger_ns;
  options.lost_linger_ns = flags.lost_linger_ns;
  options.max_recent_steps = flags.max_steps;
  if (flags.role == Role::kDaemon) {
    options.run.is_forwarded = true;
    options.run.join.whole_job = true;
    options.run.join.hold_until_ns = now_ns + kReturnNs;
    // Steps that wait for stragglers: of the largest job sixteen.
    options.run.join.max_pending = 16 * std::max<std::size_t>(flags.max_ranks, 4096);
    options.run.max_slots = 4 * std::max<std::size_t>(flags.max_ranks, 4096);
  }
  return options;
}

PipelineOptions LoopOptions(const Flags& flags) {
  PipelineOptions options;
  options.stuck_after_ns = flags.stuck_after_ns;
  if (flags.role == Role::kDaemon) {
    options.commit_interval_ns = 100'000'000;
    options.commit_pause_factor = 10;
    options.live_sleep_ns = 10'000'000;
    options.idle_sleep_ns = 50'000'000;
    options.settle_wait_ns = 500'000'000;
    options.nice = 5;
  }
  return options;
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
  std::unique_ptr<ingest::RingSource> rings;        // of a sidecar
  std::unique_ptr<ingest::Forwarding> forwarding;   // of a sidecar with --forward_to
  std::unique_ptr<ingest::Inbox> inbox;             // of a daemon
  std::unique_ptr<ingest::ForwardSource> forwarded;
  std::unique_ptr<ingest::IngestService> ingest;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<api::Api> api;
  std::unique_ptr<ServiceAccess> access;
  std::unique_ptr<export_::MetricsPage> metrics;
  std::unique_ptr<StepSinks> sinks;
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
  auto access = ServiceAccess::Make(flags_.service, flags_.grpc_listen, flags_.http_listen);
  if (!access.ok()) return access.status();
  p.access = *std::move(access);
  export_::MetricsPageOptions page_options;
  page_options.service = &p.access->counters();
  page_options.max_ranks = flags_.max_rank_series;
  page_options.leave_runs_to_daemon = flags_.leave_runs_to_daemon;
  p.metrics = std::make_unique<export_::MetricsPage>(page_options);

  state::StoreOptions store_options;
  store_options.directory = flags_.state_dir;
  store_options.max_bytes = flags_.history_bytes;
  store_options.full_age_ns = flags_.history_full_ns;
  store_options.max_age_ns = flags_.history_age_ns;
  store_options.journal_bytes = flags_.journal_bytes;
  if (!flags_.state_dir.empty()) {
    // Before the database is looked at: what another process is writing must not be taken for damaged.
    auto directory = state::MakeStateDirectory(flags_.state_dir);
    if (!directory.ok()) return directory.status();
    flags_.state_dir = store_options.directory = *std::move(directory);
    if (const absl::Status status = LockStateDirectory(flags_.state_dir); !status.ok()) return status;
  }
  auto store = state::Store::Open(store_options);
  if (!store.ok()) return store.status();
  p.store = *std::move(store);
  if (!p.store->open_note().empty()) spdlog::error("{}", p.store->open_note());

  p.book = std::make_unique<state::RunBook>(BookOptions(flags_, p.clock.NowNs()), p.judges.get(), p.store.get(), p.clock.NowNs());
  if (const absl::Status status = p.book->Load(p.clock.NowNs()); !status.ok()) return status;
  if (p.book->runs_from_future() > 0) {
    spdlog::warn("the clock was set back: {} runs were last written in what is now the future; their times count as now", p.book->runs_from_future());
  }

  const absl::Status made = flags_.role == Role::kDaemon ? MakeForwardSource() : MakeRingSource();
  if (!made.ok()) return made;
  state::RecordSource* source = p.rings ? static_cast<state::RecordSource*>(p.rings.get()) : p.forwarded.get();
  p.pipeline = std::make_unique<Pipeline>(LoopOptions(flags_), &p.clock, p.book.get(), p.store.get(), &p.board, &p.mailbox,
                                          std::vector<state::RecordSource*>{source}, p.forwarding ? p.forwarding->tap() : nullptr);
  if (p.forwarding) p.pipeline->set_forward_view([&p] { return p.forwarding->View(); });
  auto sinks = StepSinks::Make(flags_.sinks, flags_.state_dir, p.board, p.store->reader(), &p.access->counters());
  if (!sinks.ok()) return sinks.status();
  p.sinks = *std::move(sinks);
  p.pipeline->RunCycle();  // whoever asks first already sees the runs that are here
  p.pipeline->Start();
  if (p.forwarding) p.forwarding->Start();
  p.sinks->Start();

  p.api = std::make_unique<api::Api>(p.board, p.mailbox, p.store->reader(), p.clock);
  if (flags_.grpc_listen != "none") {
    rpc::GrpcOptions options;
    options.listen = flags_.grpc_listen;
    options.ready = [this] { return CheckReady(); };
    p.access->Fill(&options);
    if (p.ingest) {
      options.further_services = {p.ingest.get()};
      options.max_request_bytes = 2 << 20;  // a batch; its own limit is the service's
      options.memory_quota_bytes = std::size_t{512} << 20;
    }
    p.grpc = std::make_unique<rpc::GrpcServer>(options, *p.api);
    if (const absl::Status status = StartPatiently([&] { return p.grpc->Start(); }); !status.ok()) return status;
    spdlog::info("gRPC on {}", p.grpc->address());
  }
  if (flags_.http_listen != "none") {
    web::WebOptions options;
    options.listen = flags_.http_listen;
    options.allowed_hosts = flags_.http_allowed_hosts;
    p.access->Fill(&options);
    options.ready = [this] { return CheckReady(); };
    // Of a sidecar it never says so. A trainer's liveness probe asks the sidecar beside it: one that is started again and again, because it hangs again and
    // again, would end the trainer, while one that stands still and answers does not.
    if (flags_.role == Role::kDaemon) options.healthy = [this] { return CheckNotHung(); };
    options.render_metrics = [&p] { return p.metrics->Render(*p.board.Get()); };
    p.web = std::make_unique<web::WebServer>(options, *p.api);
    if (const absl::Status status = StartPatiently([&] { return p.web->Start(); }); !status.ok()) return status;
    spdlog::info("HTTP on {}", p.web->address());
  }
  return absl::OkStatus();
}

absl::Status Observer::MakeRingSource() {
  Parts& p = *parts_;
  ingest::RingSourceOptions options;
  options.directories = flags_.ring_dirs;
  options.liveness.frozen_after_ns = flags_.frozen_after_ns;
  options.reclaim = flags_.reclaim;
  p.rings = std::make_unique<ingest::RingSource>(options, &p.clock);
  for (const std::string& directory : flags_.ring_dirs) spdlog::info("watching rings in {}", directory);
  if (flags_.forward_to.empty()) return absl::OkStatus();
  ingest::ForwardingOptions forwarding;
  forwarding.addresses = flags_.forward_to;
  if (!flags_.state_dir.empty()) forwarding.directory = flags_.state_dir + "/forward";
  forwarding.spool_bytes = flags_.forward_spool_bytes;
  forwarding.node = NodeName();
  auto credentials = transport::MakeChannelCredentials("--forward_tls_", flags_.service.forward_tls);
  if (!credentials.ok()) return credentials.status();
  if (!flags_.service.forward_tls.ca.empty()) forwarding.client.renew_credentials = transport::RenewedCredentials("--forward_tls_", flags_.service.forward_tls);
  if (const std::string& path = flags_.service.forward_token_file; !path.empty()) {
    if (const auto token = transport::ReadToken("--forward_token_file", path); !token.ok()) return token.status();
    // Read for each stream: it may have been changed.
    forwarding.client.prepare = [path](grpc::ClientContext* context) {
      const auto token = transport::ReadToken("--forward_token_file", path);
      if (token.ok()) context->AddMetadata("authorization", "Bearer " + *token);
    };
  }
  auto opened = ingest::Forwarding::Open(forwarding, &p.clock);
  if (!opened.ok()) return opened.status();
  p.forwarding = *std::move(opened);
  return absl::OkStatus();
}

absl::Status Observer::MakeForwardSource() {
  Parts& p = *parts_;
  p.inbox = std::make_unique<ingest::Inbox>(kInboxBytes);
  ingest::ForwardSourceOptions options;
  options.max_runs_per_sender = flags_.max_runs_per_sender;
  options.max_runs_per_client = flags_.max_runs_per_client;
  options.max_producers = 4 * std::max<std::size_t>(flags_.max_ranks, 4096);
  p.forwarded = std::make_unique<ingest::ForwardSource>(options, p.inbox.get(), &p.clock);
  ingest::IngestServiceOptions service;
  service.instance = NodeName();
  if (p.access->grpc_guard().read_only()) {
    spdlog::warn("this daemon takes no records: --grpc_listen={} can be reached from elsewhere, and there is no --token_file; give it one, and sidecars one of its "
                 "tokens by --forward_token_file", flags_.grpc_listen);
  }
  const auto gate = std::make_shared<rpc::CallGate>(&p.access->grpc_guard(), &p.access->grpc_limiter(), &p.access->counters());
  service.admit = [gate](const grpc::ServerContextBase& context) { return gate->WritingStream(context); };
  service.client_of = [](const grpc::ServerContextBase& context) { return transport::ClientOfPeer(context.peer()); };
  p.ingest = std::make_unique<ingest::IngestService>(service, p.inbox.get());
  return absl::OkStatus();
}

absl::Status Observer::ReloadPolicy() {
  if (flags_.policy.empty()) return absl::FailedPreconditionError("no --policy file was given: nothing to read again");
  auto judges = MakeJudges(flags_);
  if (!judges.ok()) return judges.status();
  // Judges belong to the drain thread; what they know goes over from the old ones to the new.
  const auto done = std::make_shared<std::promise<void>>();
  parts_->pipeline->Post([this, done, replaced = std::make_shared<std::unique_ptr<state::JudgeFactory>>(*std::move(judges))] {
    parts_->book->ReplaceJudges(replaced->get());
    std::swap(parts_->judges, *replaced);
    done->set_value();
  });
  if (done->get_future().wait_for(kPolicyWait) == std::future_status::ready) return absl::OkStatus();
  return absl::UnavailableError("the new one is in force as soon as the drain thread, which is busy or stands still, comes round");
}

absl::Status Observer::CheckReady() const {
  if (absl::Status status = parts_->pipeline->watch().CheckGoing(); !status.ok()) return status;
  return parts_->board.Get()->version > 0 ? absl::OkStatus() : absl::UnavailableError("nothing has been read yet");
}

absl::Status Observer::CheckNotHung() const { return parts_->pipeline->watch().CheckNotHung(); }

bool Observer::EveryProducerEnded() const {
  bool any = false;
  for (const auto& run : parts_->board.Get()->runs) {
    if (run->any_left_out_up) return false;
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
  if (p.ingest) p.ingest->Close();
  if (p.pipeline) p.pipeline->Stop(kFinalDrainNs);
  if (p.forwarding) p.forwarding->Stop(kForwardGraceNs);
  if (p.sinks) p.sinks->Stop(kLastRoundNs);
  if (p.grpc) p.grpc->Shutdown(kStreamGraceNs);
  if (p.web) p.web->Shutdown();
  p.board.Close();
  p.web.reset();
  p.grpc.reset();
}

}  // namespace lossgauge::main
