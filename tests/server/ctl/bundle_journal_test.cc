// A job of six ranks as lossgauged has it, faults of single ranks, restarts and stalls included; its bundle over gRPC; and what replay says of that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/detect/judge.h"
#include "server/replay/journal_replay.h"
#include "server/rpc/grpc_server.h"
#include "server/state/history_codec.h"
#include "server/state/run_book.h"
#include "tests/scratch_directory.h"
#include "tests/server/ctl/session.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::uint32_t kRanks = 6;  // three tensor-parallel groups of two
constexpr std::uint64_t kTokens = 2048;

class Job {
 public:
  explicit Job(const std::string& directory) : directory_(directory) { Open(detect::DefaultPolicies()); }

  // What lossgauged knows comes out of its store again.
  void RestartLossgauged(detect::PolicySet policies = detect::DefaultPolicies()) {
    book_.reset();
    store_.reset();
    Open(std::move(policies));
    for (const auto& rank : ranks_) book_->OnProducer(rank);
  }
  void LoadPolicy(detect::PolicySet policies) {
    auto next = std::make_unique<detect::DetectorJudgeFactory>(std::move(policies));
    book_->ReplaceJudges(next.get());
    judges_ = std::move(next);
  }

  void Begin(const std::string& attempt, std::int64_t step) {
    ranks_.clear();
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      auto info = std::make_shared<state::ProducerInfo>();
      info->segment.words[0] = ++segments_;
      info->run = "demo";
      info->attempt = attempt;
      info->attempt_start_ns = clock_.NowNs();
      info->layout.world_size = kRanks;
      info->layout.rank = rank;
      info->layout.dp = {3, rank / 2};
      info->layout.tp = {2, rank % 2};
      info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
      info->layout.has_loss = 1;
      info->layout.vocab_size = 1000;
      info->layout.shard_columns = 500;
      info->layout.shard_offset = 500 * (rank % 2);
      ranks_.push_back(std::move(info));
    }
    for (const auto& rank : ranks_) book_->OnProducer(rank);
    next_step_ = step;
    publication_ = 0;
    Look(state::ProducerState::kLive);
  }

  void Look(state::ProducerState producer_state, std::optional<std::uint32_t> behind = std::nullopt) {
    for (const auto& rank : ranks_) {
      state::LivenessReport report;
      report.producer = rank;
      report.producer_state = producer_state;
      report.entered_step = next_step_ - (rank->layout.rank == behind ? 1 : 0);
      report.enqueued_step = report.published_step = next_step_ - 1;
      report.last_call = LG_CALL_PUBLISH;
      report.drained = true;
      report.time_ns = clock_.NowNs();
      book_->OnLiveness(report);
    }
    Cycle();
  }

  using Edit = std::function<void(std::uint32_t rank, lg_step_record& record)>;
  void Steps(int count, const Edit& edit = nullptr, std::optional<std::uint32_t> missing = std::nullopt) {
    std::normal_distribution<double> noise(0, 0.02);
    for (int i = 0; i < count; ++i, ++next_step_) {
      clock_.Advance(kSecond);
      ++publication_;
      for (std::uint32_t group = 0; group < 3; ++group) {
        const double loss = 2.5 + noise(random_);
        for (std::uint32_t rank = 2 * group; rank < 2 * group + 2; ++rank) {
          if (rank == missing) continue;
          state::RankSample sample = Sample(rank, loss);
          if (edit) edit(rank, sample.record);
          book_->OnSample(std::move(sample));
        }
      }
      if (missing) clock_.Advance(3 * kSecond);  // beyond the join timeout
      Look(state::ProducerState::kLive);
    }
  }
  void Wait(int seconds) {
    for (int i = 0; i < seconds; i += 5) {
      clock_.Advance(5 * kSecond);
      Look(state::ProducerState::kLive, 3);
    }
  }
  void Cycle() {
    book_->Advance(clock_.NowNs(), true);
    (void)store_->Commit(book_->BuildTransaction(clock_.NowNs()));
    book_->OnCommitted();
    board_.Publish(book_->BuildSnapshot(clock_.NowNs(), {}));
  }

  state::RunBook& book() { return *book_; }
  std::vector<state::Incident> Incidents(bool open_only) { return *reader_->ReadIncidents("demo", open_only, 1000, 0); }
  std::vector<state::Verdict> Verdicts() { return *reader_->ReadVerdicts("demo", 1000, 0); }
  std::string address() const { return grpc_->address(); }
  state::TimeNs now_ns() { return clock_.NowNs(); }

 private:
  void Open(detect::PolicySet policies) {
    grpc_.reset();
    api_.reset();
    state::StoreOptions options;
    options.directory = directory_;
    store_ = *state::Store::Open(options);
    reader_ = store_->reader();
    judges_ = std::make_unique<detect::DetectorJudgeFactory>(std::move(policies));
    state::RunBookOptions book;
    book.run.journal.on = true;
    book.run.journal.piece_bytes = 64 << 10;  // many pieces, that go on in one another
    book_ = std::make_unique<state::RunBook>(book, judges_.get(), store_.get(), clock_.NowNs());
    ASSERT_TRUE(book_->Load(clock_.NowNs()).ok());
    api_ = std::make_unique<api::Api>(board_, mailbox_, reader_, clock_);
    rpc::GrpcOptions listen;
    listen.listen = "127.0.0.1:0";
    grpc_ = std::make_unique<rpc::GrpcServer>(listen, *api_);
    ASSERT_TRUE(grpc_->Start().ok());
  }

  state::RankSample Sample(std::uint32_t rank, double loss) {
    state::RankSample sample;
    sample.producer = ranks_[rank];
    sample.publication = publication_;
    sample.receive_time_ns = clock_.NowNs();
    lg_step_record& r = sample.record;
    r.step = next_step_;
    r.boot_ns = clock_.BootNs();
    r.wall_ns = clock_.NowNs();
    r.micro_batches = 1;
    r.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_MASS | LG_HAS_GRAD_NORM | LG_HAS_DENOMINATOR;
    r.tokens = r.unmasked_tokens = r.finite_tokens = kTokens;
    r.denominator_min = r.denominator_max = kTokens;
    r.grad_norm = 0.5;
    r.nll_sum = lg_fixed128_from_double(loss * kTokens);
    r.log_z_sum = lg_fixed128_from_double(8.0 * kTokens);
    r.log_z_max = 9;
    r.max_abs_logit = 12;
    r.target_hits = rank % 2 == 0 ? kTokens / 4 * 3 : kTokens / 4;
    r.probability_mass = lg_fixed128_from_double(static_cast<double>(r.target_hits));
    r.target_fingerprint = static_cast<std::uint64_t>(next_step_) * 1'000'003 + rank / 2;
    r.mask_fingerprint = 5;
    r.total_steps = publication_;
    r.total_tokens = r.total_unmasked_tokens = r.total_finite_tokens = kTokens * publication_;
    return sample;
  }

  const std::string directory_;
  testing::ManualClock clock_;
  std::mt19937_64 random_{7};
  state::SnapshotBoard board_;
  state::Mailbox mailbox_;
  std::unique_ptr<state::JudgeFactory> judges_;
  std::unique_ptr<state::Store> store_;
  std::shared_ptr<state::HistoryReader> reader_;
  std::unique_ptr<state::RunBook> book_;
  std::unique_ptr<api::Api> api_;
  std::unique_ptr<rpc::GrpcServer> grpc_;
  std::vector<std::shared_ptr<const state::ProducerInfo>> ranks_;
  std::uint64_t segments_ = 0;
  std::int64_t next_step_ = 0;
  std::uint64_t publication_ = 0;
};

void ShiftMass(std::uint32_t rank, lg_step_record& record) {
  if (rank == 1) record.probability_mass = lg_fixed128_add(record.probability_mass, lg_fixed128_from_double(40));
}
void RaiseLossOfLastGroup(std::uint32_t rank, lg_step_record& record) {
  if (rank >= 4) record.nll_sum = lg_fixed128_add(record.nll_sum, lg_fixed128_from_double(1.5 * kTokens));
}
void HalfDenominator(std::uint32_t, lg_step_record& record) { record.denominator_min = record.denominator_max = kTokens / 2; }

class BundleJournal : public ::testing::Test {
 protected:
  // Every kind of thing that steps over ranks do not hold.
  void LiveThrough() {
    job.Begin("a1", 0);
    job.Steps(80);
    job.Steps(2, ShiftMass);                    // integrity, and back
    job.Steps(40);
    job.Steps(12, RaiseLossOfLastGroup);        // rank_outlier
    job.Steps(40);
    job.Steps(4, HalfDenominator);              // accounting
    job.Steps(10);
    job.Steps(3, nullptr, 2);                   // rank_missing
    job.Steps(10);
    for (const state::Incident& incident : job.Incidents(true)) {
      state::Incident out;
      (void)job.book().Acknowledge({incident.id, {"somebody", "seen", job.now_ns()}}, &out);
    }
    (void)job.book().SetMode("demo", "shadow");
    job.Steps(5);
    (void)job.book().SetMode("demo", "policy");
    detect::PolicySet other = detect::DefaultPolicies();
    other.defaults.stall_restart_seconds = 300;
    other.defaults.version = "shorter";
    job.LoadPolicy(other);
    job.Steps(20);
    job.RestartLossgauged(other);
    job.Look(state::ProducerState::kLive);
    job.Steps(30);
    job.Wait(400);                              // stall: RESTART by the second policy, not by the first
    std::uint64_t entries = 0;
    (void)job.book().Report({"demo", {state::Action::kRestart, "scheduler", "did it", "a1", job.now_ns()}}, &entries);
    job.Look(state::ProducerState::kLost);
    job.Begin("a2", 250);
    job.Steps(40);
    job.Steps(4, ShiftMass);                    // HALT
  }

  void SetUp() override { session.environment = {{"LOSSGAUGE_ADDRESS", job.address()}}; }
  void Pack(std::vector<std::string> what = {"demo"}) {
    session.environment = {{"LOSSGAUGE_ADDRESS", job.address()}};
    what.insert(what.begin(), "bundle");
    what.insert(what.end(), {"-o", path});
    ASSERT_EQ(session.Run(what), 0) << session.err;
  }
  replay::JournalOutcome Replay(const std::optional<detect::PolicySet>& other = std::nullopt) {
    auto outcome = replay::ReplayJournal(path, other);
    EXPECT_TRUE(outcome.ok() && outcome->has_value()) << outcome.status();
    return outcome.ok() && outcome->has_value() ? **std::move(outcome) : replay::JournalOutcome();
  }

  const ScratchDirectory scratch;
  const std::string path = scratch / "b.tar";
  Job job{scratch / "state"};
  Session session;
};

TEST_F(BundleJournal, GivesEveryVerdictAndIncidentAgainBitForBit) {
  LiveThrough();
  Pack();
  const replay::JournalOutcome outcome = Replay();
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(outcome.steps, 300u);
  EXPECT_EQ(outcome.attempts, 2u);
  EXPECT_EQ(outcome.most_ranks, kRanks);
  EXPECT_GT(outcome.verdicts, 300u);
  EXPECT_EQ(outcome.verdicts_unlike, 0u) << "first after step " << (outcome.first_unlike ? outcome.first_unlike->step : -1);
  EXPECT_EQ(outcome.pieces_lost, 1u) << "the restart of lossgauged";

  std::set<std::string> given, again, conditions;
  for (const state::Incident& incident : job.Incidents(false)) {
    given.insert(state::EncodeIncident(incident));
    conditions.insert(state::ReasonCode(incident));
  }
  for (const auto& life : outcome.result.incidents) again.insert(state::EncodeIncident(life.incident));
  EXPECT_EQ(again, given);
  for (const char* condition : {"integrity/mass", "rank_outlier", "rank_missing", "stall", "accounting/denominator"}) {
    EXPECT_THAT(conditions, ::testing::Contains(condition));
  }
  std::set<std::string> verdicts;
  for (const state::Verdict& verdict : job.Verdicts()) verdicts.insert(state::EncodeVerdict(verdict));
  for (const auto& change : outcome.result.verdicts) EXPECT_TRUE(verdicts.contains(state::EncodeVerdict(change.verdict))) << change.verdict.reason;
  EXPECT_EQ(outcome.result.worst, state::Action::kHalt);
}

TEST_F(BundleJournal, TheReplayCommandSaysSo) {
  LiveThrough();
  Pack();
  ASSERT_EQ(session.Run({"replay", path}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("verdicts came out as it was given, to the last bit"));
  EXPECT_THAT(session.out, HasSubstr("integrity"));
  EXPECT_THAT(session.out, HasSubstr("rank_outlier"));
  EXPECT_THAT(session.out, Not(HasSubstr("judged by steps alone")));
  ASSERT_EQ(session.Run({"replay", "--steps", path}), 0) << session.err;
  EXPECT_THAT(session.out, HasSubstr("judged by steps alone"));
}

TEST_F(BundleJournal, AnotherPolicyJudgesTheSameRecordsOfEachRank) {
  LiveThrough();
  Pack();
  detect::PolicySet lenient = detect::DefaultPolicies();
  lenient.defaults.integrity_halt_steps = 5;
  const replay::JournalOutcome outcome = Replay(lenient);
  EXPECT_EQ(outcome.result.worst, state::Action::kRestart) << "four broken steps are no HALT by it";
  EXPECT_GT(outcome.verdicts_unlike, 0u);
}

TEST_F(BundleJournal, AnIncidentsBundleHoldsThePiecesAroundIt) {
  LiveThrough();
  std::string id;
  for (const state::Incident& incident : job.Incidents(false)) {
    if (incident.attempt == "a2" && incident.condition == state::Condition::kIntegrity) id = incident.id;
  }
  ASSERT_NE(id, "");
  Pack({"demo", id});
  const replay::JournalOutcome outcome = Replay();
  EXPECT_EQ(outcome.verdicts_unlike, 0u);
  EXPECT_TRUE(std::any_of(outcome.result.incidents.begin(), outcome.result.incidents.end(), [&](const auto& life) { return life.incident.id == id; }));
}

TEST_F(BundleJournal, ThePoliciesThatJudgedAreInItAndInTheExplanation) {
  LiveThrough();
  Pack();
  std::ifstream file(path, std::ios::binary);
  const std::string archive((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(archive, HasSubstr("policies/2.yaml"));
  EXPECT_THAT(archive, HasSubstr("stall_restart_seconds: 300"));
  EXPECT_THAT(archive, HasSubstr("stall_restart_seconds: 600"));
  job.LoadPolicy(detect::DefaultPolicies());
  job.Look(state::ProducerState::kLive);
  for (const state::Incident& incident : job.Incidents(false)) {
    if (incident.condition != state::Condition::kStall) continue;
    ASSERT_EQ(session.Run({"explain", "demo", incident.id}), 0) << session.err;
    EXPECT_THAT(session.out, HasSubstr("udged by policy shorter"));
    EXPECT_THAT(session.out, Not(HasSubstr("not known any more")));
  }
}

// Journals are other people's files.
TEST_F(BundleJournal, AnyBitThatFlippedInAJournalIsNamed) {
  LiveThrough();
  Pack();
  std::ifstream file(path, std::ios::binary);
  const std::string archive((std::istreambuf_iterator<char>(file)), {});
  const std::size_t begin = archive.find("lossgauge-journal-1\n");
  ASSERT_NE(begin, std::string::npos);
  std::mt19937_64 random(3);
  int told = 0;
  for (int i = 0; i < 40; ++i) {
    std::string broken = archive;
    broken[begin + 100 + random() % (archive.size() - begin - 4096)] ^= static_cast<char>(1 << random() % 8);
    std::ofstream(path, std::ios::binary) << broken;
    const auto outcome = replay::ReplayJournal(path, std::nullopt);
    told += !outcome.ok() || (outcome->has_value() && !(*outcome)->error.empty());
  }
  EXPECT_EQ(told, 40);
}

}  // namespace
}  // namespace lossgauge::ctl
