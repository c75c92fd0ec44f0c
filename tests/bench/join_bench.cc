// What a step of a large job costs the daemon's drain thread: batches of many nodes parsed, joined, judged, committed and shown. CPU time of the
// thread, without network and compression.
//   join_bench [--steps=20] [--tensor=8]
// The clock is moved by hand, a second a step, so that snapshots, presence and commits come as often as at one step a second.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/judge.h"
#include "server/ingest/forward_items.h"
#include "server/ingest/forward_source.h"
#include "server/main/pipeline.h"
#include "server/state/run_book.h"
#include "spdlog/spdlog.h"
#include "tests/server/manual_clock.h"

namespace {

using namespace lossgauge;  // NOLINT

class NoLink final : public ingest::SenderLink {
 public:
  void Acknowledge(std::uint64_t sequence) override { acknowledged = sequence; }
  void Taken() override {}
  void End(const absl::Status& status) override { std::fprintf(stderr, "ended: %s\n", std::string(status.message()).c_str()); }
  std::uint64_t acknowledged = 0;
};

double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::uint32_t Option(int argc, char** argv, const std::string& name, std::uint32_t otherwise) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(prefix, 0) == 0) return static_cast<std::uint32_t>(std::atoi(argv[i] + prefix.size()));
  }
  return otherwise;
}

constexpr std::uint32_t kRanksPerNode = 32;

void Bench(std::uint32_t ranks, std::uint32_t tensor, std::int64_t steps) {
  testing::ManualClock clock;
  detect::DetectorJudgeFactory judges(detect::DefaultPolicies());
  auto store = state::Store::Open({});
  if (!store.ok()) std::abort();
  state::RunBookOptions options;
  options.run.is_forwarded = options.run.join.whole_job = true;
  options.run.join.max_ranks = 32'768;
  options.run.join.max_pending = 16 * 32'768;
  options.run.max_rank_series = 500;
  state::RunBook book(options, &judges, store->get(), clock.NowNs());
  if (!book.Load(clock.NowNs()).ok()) std::abort();
  ingest::Inbox inbox(std::size_t{1} << 30);
  ingest::ForwardSource source({}, &inbox, &clock);
  state::SnapshotBoard board;
  state::Mailbox mailbox;
  main::Pipeline pipeline({}, &clock, &book, store->get(), &board, &mailbox, {&source});

  std::vector<std::shared_ptr<const state::ProducerInfo>> infos;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto info = std::make_shared<state::ProducerInfo>();
    info->segment.words[0] = rank + 1;
    info->segment.words[1] = 7;
    info->run = "job";
    info->attempt = "1";
    info->attempt_start_ns = 1;
    info->layout.world_size = ranks;
    info->layout.rank = rank;
    info->layout.tp = {tensor, rank % tensor};
    info->layout.dp = {ranks / tensor, rank / tensor};
    info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
    info->layout.has_loss = 1;
    info->ring_path = "/dev/shm/lossgauge-0/0123456789abcdef-r0-0123456789abcdef0123456789abcdef.steps";
    infos.push_back(std::move(info));
  }
  const std::uint32_t nodes = (ranks + kRanksPerNode - 1) / kRanksPerNode;
  std::vector<std::shared_ptr<NoLink>> links;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    links.push_back(std::make_shared<NoLink>());
    ingest::InboxEntry entry;
    entry.kind = ingest::InboxEntry::Kind::kOpened;
    entry.link = links.back();
    entry.hello.set_sender("sender" + std::to_string(100'000 + node));
    entry.hello.set_node("node");
    entry.hello.set_step_words(ingest::kStepWords);
    inbox.Push(std::move(entry));
  }
  double parse_cpu = 0, drain_cpu = 0, first_cpu = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      v1::Batch batch;
      batch.set_sequence(static_cast<std::uint64_t>(step) + 1);
      for (std::uint32_t rank = node * kRanksPerNode; rank < std::min(ranks, (node + 1) * kRanksPerNode); ++rank) {
        const std::uint32_t number = rank % kRanksPerNode + 1;
        if (step == 0) ingest::WriteProducer(*infos[rank], number, batch.add_items()->mutable_producer());
        state::RankSample sample;
        sample.producer = infos[rank];
        sample.publication = static_cast<std::uint64_t>(step) + 1;
        sample.receive_time_ns = clock.NowNs();
        lg_step_record& r = sample.record;
        const std::uint32_t group = rank / tensor;
        r.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_DENOMINATOR | LG_HAS_GRAD_NORM;
        r.step = step;
        r.boot_ns = 1'000'000'000 + step * 1'000'000'000;
        r.tokens = r.unmasked_tokens = r.finite_tokens = 4096 + group % 5;
        r.nll_sum = lg_fixed128_from_double(2.2 * static_cast<double>(r.tokens) + 0.01 * group);
        r.grad_norm = 1.5;
        r.max_abs_logit = 20;
        r.target_fingerprint = static_cast<std::uint64_t>(step) * 1000 + group;
        r.total_steps = static_cast<std::uint64_t>(step) + 1;
        r.total_tokens = r.total_unmasked_tokens = r.total_finite_tokens = r.tokens * r.total_steps;
        ingest::AppendSample(sample, number, &batch);
        state::LivenessReport report;
        report.producer = infos[rank];
        report.enqueued_step = report.published_step = report.entered_step = step;
        report.time_ns = clock.NowNs();
        ingest::WriteLiveness(report, number, batch.add_items()->mutable_liveness());
      }
      batch.set_sent_ns(static_cast<std::uint64_t>(clock.NowNs()));
      const std::string bytes = batch.SerializeAsString();
      const double begin = CpuSeconds();
      ingest::InboxEntry entry;
      entry.link = links[node];
      entry.batch = std::make_unique<v1::Batch>();
      if (!entry.batch->ParseFromString(bytes)) std::abort();
      entry.bytes = bytes.size();
      parse_cpu += CpuSeconds() - begin;
      inbox.Push(std::move(entry));
    }
    const double begin = CpuSeconds();
    for (int cycle = 0; cycle < 100; ++cycle) {  // a cycle every 10 ms
      clock.Advance(10'000'000);
      while (pipeline.RunCycle() == 0) {
      }
    }
    (step == 0 ? first_cpu : drain_cpu) += CpuSeconds() - begin;
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto counted = static_cast<double>(steps - 1);
  std::printf("%6u ranks, groups of %u: %7.1f ms a step on the drain thread, %6.1f ms parsing, %7.1f ms to attach; %ld MiB at most; %llu steps joined, "
              "last acknowledged %llu\n",
              ranks, tensor, 1e3 * drain_cpu / counted, 1e3 * parse_cpu / static_cast<double>(steps), 1e3 * first_cpu, usage.ru_maxrss / 1024,
              static_cast<unsigned long long>(board.Get()->self.steps_joined), static_cast<unsigned long long>(links[0]->acknowledged));
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);
  const auto steps = static_cast<std::int64_t>(Option(argc, argv, "steps", 20));
  const std::uint32_t tensor = Option(argc, argv, "tensor", 8);
  for (const std::uint32_t ranks : {256u, 1024u, 4096u, 16'384u}) Bench(ranks, tensor, steps);
  return 0;
}
