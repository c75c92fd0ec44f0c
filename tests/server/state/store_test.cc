#include "server/state/store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/state/history_codec.h"
#include "tests/scratch_directory.h"

namespace lossgauge::state {
namespace {

namespace fs = std::filesystem;

class StoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open() {
    auto store = Store::Open({.directory = directory_});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  std::string File() const { return directory_ + "/lossgauge.db"; }
  // Fills the first page of a table with bytes that no page has.
  void Damage(const std::string& table) const {
    sqlite3* database = nullptr;
    sqlite3_stmt* statement = nullptr;
    ASSERT_EQ(sqlite3_open(File().c_str(), &database), SQLITE_OK);
    const std::string sql = "SELECT rootpage FROM sqlite_schema WHERE name='" + table + "'";
    ASSERT_EQ(sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr), SQLITE_OK);
    ASSERT_EQ(sqlite3_step(statement), SQLITE_ROW);
    const std::int64_t page = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    std::fstream file(File(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp((page - 1) * 4096);
    file << std::string(4096, '\xff');
  }
  const ScratchDirectory scratch_;
  const std::string directory_ = fs::canonical(scratch_.path());
};

StepSummary FullStep(std::uint64_t sequence, std::int64_t step, const std::string& attempt = "a1") {
  StepSummary s;
  s.sequence = sequence;
  s.attempt = attempt;
  s.step = step;
  s.receive_time_ns = 1'000 + static_cast<std::int64_t>(sequence);
  s.ranks = 2;
  s.missing_ranks = {1, 70000};
  s.complete = false;
  s.loss_nats = 2.25;
  s.denominator_max = 17;
  s.tokens = std::uint64_t{1} << 63;
  s.target_fingerprint = ~std::uint64_t{0};
  s.worst_row = Place{1, 5, -1, 9.5};
  s.rank_steps = {RankSummary{.rank = 0, .loss_nats = 2.0, .unmasked_tokens = 3}, RankSummary{.rank = 1, .grad_norm = 0.5, .lost_before = 9}};
  return s;
}

Transaction WithSteps(const std::string& run, std::uint64_t first, std::uint64_t count, const std::string& attempt = "a1",
                      std::int64_t step_offset = 0) {
  Transaction t;
  for (std::uint64_t i = first; i < first + count; ++i) {
    t.steps.emplace_back(run, std::make_shared<StepSummary>(FullStep(i, static_cast<std::int64_t>(i) + step_offset, attempt)));
  }
  return t;
}

TEST(HistoryCodec, GivesEveryFieldOfAStepBackAndKeepsAbsentOnesAbsent) {
  const StepSummary in = FullStep(7, -1);
  const auto out = DecodeStep(EncodeStep(in));
  ASSERT_TRUE(out);
  EXPECT_EQ(EncodeStep(*out), EncodeStep(in));
  EXPECT_EQ(out->step, -1);
  EXPECT_EQ(out->loss_nats, 2.25);
  EXPECT_FALSE(out->perplexity);
  EXPECT_EQ(out->missing_ranks, in.missing_ranks);
  EXPECT_EQ(out->tokens, in.tokens);
  EXPECT_EQ(out->worst_row->value, 9.5);
  EXPECT_FALSE(out->worst_logit);
  EXPECT_EQ(out->rank_steps[1].lost_before, 9u);
}

TEST(HistoryCodec, RefusesEveryTruncationOfAStepAnIncidentAndAVerdict) {
  Incident incident{.id = "x-1", .run = "r", .condition = Condition::kIntegrity, .kind = "mass", .evidence = {{"sum", 1, "tokens", ""}}};
  incident.acknowledged = Acknowledgement{"me", "seen", 4};
  Verdict verdict{.action = Action::kRestart, .reason = "why", .reason_codes = {"nonfinite"}};
  verdict.resume_point = ResumePoint{10, "/c"};
  const std::string step = EncodeStep(FullStep(1, 1)), i = EncodeIncident(incident), v = EncodeVerdict(verdict);
  EXPECT_EQ(EncodeIncident(*DecodeIncident(i)), i);
  EXPECT_EQ(EncodeVerdict(*DecodeVerdict(v)), v);
  for (std::size_t n = 0; n < step.size(); ++n) EXPECT_FALSE(DecodeStep(step.substr(0, n))) << n;
  for (std::size_t n = 0; n < i.size(); ++n) EXPECT_FALSE(DecodeIncident(i.substr(0, n))) << n;
  for (std::size_t n = 0; n < v.size(); ++n) EXPECT_FALSE(DecodeVerdict(v.substr(0, n))) << n;
  EXPECT_FALSE(DecodeStep(step + "x"));
}

TEST_F(StoreTest, KeepsCursorsRunsAndLedgerOverAReopening) {
  {
    auto store = Open();
    Transaction t;
    t.cursors.push_back({.segment = {{1, 2}}, .run = "r", .attempt = "a", .rank = 3, .next_steps_publication = 9, .ended = true, .totals = "tt"});
    t.runs.push_back({.run = "r", .state = std::string("s\0s", 3), .judge = "j", .updated_ns = 5});
    t.ledger.emplace_back("r", LedgerEntry{Action::kRestart, "slurm", "requeued", "a", 77});
    ASSERT_TRUE(store->Commit(t).ok());
  }
  auto store = Open();
  const auto cursors = *store->LoadCursors();
  ASSERT_EQ(cursors.size(), 1u);
  EXPECT_EQ(cursors[0].segment, (SegmentId{{1, 2}}));
  EXPECT_EQ(cursors[0].next_steps_publication, 9u);
  EXPECT_TRUE(cursors[0].ended);
  EXPECT_EQ(cursors[0].totals, "tt");
  const auto runs = *store->LoadRuns();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].state, std::string("s\0s", 3));
  const auto ledger = *store->LoadLedger("r");
  ASSERT_EQ(ledger.size(), 1u);
  EXPECT_EQ(ledger[0].action, Action::kRestart);
  EXPECT_EQ(ledger[0].comment, "requeued");
}

TEST_F(StoreTest, ReadsStepsBySequenceByStepByAttemptAndNewestFirst) {
  auto store = Open();
  ASSERT_TRUE(store->Commit(WithSteps("r", 1, 100)).ok());
  ASSERT_TRUE(store->Commit(WithSteps("r", 101, 50, "a2", -60)).ok());  // goes back to step 41
  ASSERT_TRUE(store->Commit(WithSteps("other", 1, 5)).ok());
  auto reader = store->reader();
  const auto tail = *reader->ReadSteps({.run = "r", .limit = 2, .newest_first = true});
  ASSERT_EQ(tail.size(), 2u);
  EXPECT_EQ(tail[0].sequence, 150u);
  EXPECT_EQ(reader->ReadSteps({.run = "r", .after_sequence = 148})->size(), 2u);
  const auto both = *reader->ReadSteps({.run = "r", .first_step = 41, .last_step = 42});
  ASSERT_EQ(both.size(), 4u);
  EXPECT_EQ(both[0].attempt, "a1");
  EXPECT_EQ(both[3].attempt, "a2");
  EXPECT_EQ(reader->ReadSteps({.run = "r", .attempt = "a2", .first_step = 41, .last_step = 42})->size(), 2u);
  EXPECT_EQ(reader->ReadSteps({.run = "nobody"})->size(), 0u);
}

TEST_F(StoreTest, ReplacesAnIncidentByItsIdAndListsVerdictsNewestFirst) {
  auto store = Open();
  Transaction t;
  t.incidents.push_back({.id = "i-1", .run = "r", .condition = Condition::kStall, .open = true, .onset_time_ns = 1});
  t.verdicts.emplace_back("r", Verdict{.action = Action::kWatch, .reason = "first"});
  ASSERT_TRUE(store->Commit(t).ok());
  t = {};
  t.incidents.push_back({.id = "i-1", .run = "r", .condition = Condition::kStall, .open = false, .onset_time_ns = 1});
  t.verdicts.emplace_back("r", Verdict{.action = Action::kContinue, .reason = "second"});
  ASSERT_TRUE(store->Commit(t).ok());
  auto reader = store->reader();
  EXPECT_EQ(reader->ReadIncidents("r", true, 10, 0)->size(), 0u);
  ASSERT_EQ(reader->ReadIncidents("r", false, 10, 0)->size(), 1u);
  const auto verdicts = *reader->ReadVerdicts("r", 10, 0);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].reason, "second");
}

TEST_F(StoreTest, CommitsAllOfATransactionOrNoneWhenKilledAtAnyMoment) {
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      auto store = Store::Open({.directory = directory_});
      if (!store.ok()) _exit(3);
      auto cursors = *(*store)->LoadCursors();
      std::uint64_t next = cursors.empty() ? 1 : cursors[0].next_steps_publication;
      for (;;) {
        Transaction t = WithSteps("r", next, 10);
        next += 10;
        t.cursors.push_back({.segment = {{1, 2}}, .run = "r", .attempt = "a1", .next_steps_publication = next});
        if (!(*store)->Commit(t).ok()) _exit(4);
      }
    }
    usleep(20'000 + 7'000 * static_cast<unsigned>(round % 5));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "child left by itself: " << status;
    auto store = Open();
    const auto cursors = *store->LoadCursors();
    const std::uint64_t next = cursors.empty() ? 1 : cursors[0].next_steps_publication;
    EXPECT_EQ(store->reader()->ReadSteps({.run = "r", .limit = 1'000'000})->size(), next - 1);
  }
}

TEST_F(StoreTest, MovesADamagedOrForeignFileAsideAndSaysSo) {
  { std::ofstream(File()) << "this is no database, but long enough to be mistaken for one at first sight"; }
  auto store = Open();
  EXPECT_NE(store->open_note().find("moved to"), std::string::npos) << store->open_note();
  EXPECT_TRUE(fs::exists(File() + ".unreadable"));
  EXPECT_TRUE(store->Commit(WithSteps("r", 1, 1)).ok());
}

TEST_F(StoreTest, APageThatIsDamagedWhereEveryStartReadsMovesTheFileAsideAtOnce) {
  for (const char* table : {"cursors", "runs"}) {
    Transaction t = WithSteps("r", 1, 50);
    t.runs.push_back({"r", "state", "judge", 7});
    t.cursors.push_back({.segment = {{1, 2}}, .run = "r", .next_steps_publication = 51});
    ASSERT_TRUE(Open()->Commit(t).ok());
    Damage(table);
    auto store = Open();
    ASSERT_NE(store, nullptr) << table;
    EXPECT_NE(store->open_note().find("moved to"), std::string::npos) << store->open_note();
    EXPECT_TRUE(store->LoadRuns()->empty());
    EXPECT_TRUE(store->Commit(t).ok());
    store.reset();
    fs::remove(File());
  }
}

TEST_F(StoreTest, APageThatIsFoundDamagedInUseMovesTheFileAsideAtTheNextStart) {
  ASSERT_TRUE(Open()->Commit(WithSteps("r", 1, 500)).ok());
  Damage("steps");
  {
    auto store = Open();
    EXPECT_EQ(store->open_note(), "");
    const absl::Status status = store->Commit(WithSteps("r", 501, 1));
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find("the next start moves " + File()), std::string::npos) << status;
  }
  auto store = Open();
  EXPECT_NE(store->open_note().find("moved to " + File() + ".unreadable"), std::string::npos) << store->open_note();
  EXPECT_TRUE(store->Commit(WithSteps("r", 501, 1)).ok());
  store.reset();
  EXPECT_EQ(Open()->open_note(), "") << "it was moved aside once";
  EXPECT_EQ(Open()->reader()->ReadSteps({.run = "r"})->size(), 1u);
}

TEST_F(StoreTest, AHistoryThatCannotBePrunedForDamageIsMovedAsideAtTheNextStart) {
  const StoreOptions options{.directory = directory_, .max_age_ns = 1'000};
  ASSERT_TRUE((*Store::Open(options))->Commit(WithSteps("r", 1, 500)).ok());
  Damage("steps");
  EXPECT_TRUE(absl::IsDataLoss((*Store::Open(options))->Prune(1'000'000).status()));
  EXPECT_NE(Open()->open_note(), "");
}

TEST_F(StoreTest, FollowsASymbolicLinkToItsDirectoryButNoneInTheFilesPlace) {
  const std::string link = scratch_ / "link", real = scratch_ / "real";
  fs::create_directories(real + "/below");
  fs::create_directory_symlink(real, link);
  ASSERT_TRUE((*Store::Open({.directory = link + "/below"}))->Commit(WithSteps("r", 1, 3)).ok());
  EXPECT_TRUE(fs::exists(real + "/below/lossgauge.db"));
  fs::rename(real + "/below/lossgauge.db", real + "/elsewhere.db");
  fs::create_symlink(real + "/elsewhere.db", real + "/below/lossgauge.db");
  const auto store = Store::Open({.directory = real + "/below"});
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find(real + "/below/lossgauge.db: it is no file"), std::string::npos) << store.status();
}

TEST_F(StoreTest, AFileThatAnotherProcessHasLockedIsAnErrorAndStaysWhereItIs) {
  ASSERT_TRUE(Open()->Commit(WithSteps("r", 1, 1)).ok());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(File().c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE x(y)", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto store = Store::Open({.directory = directory_});
  ASSERT_FALSE(store.ok());
  EXPECT_TRUE(absl::IsUnavailable(store.status())) << store.status();
  EXPECT_FALSE(fs::exists(File() + ".unreadable"));
  sqlite3_close(other);
  EXPECT_EQ(Open()->reader()->ReadSteps({.run = "r"})->size(), 1u) << "nothing was lost";
}

TEST_F(StoreTest, AFileOfANewerSchemaOrOfAnotherProgramIsMovedAside) {
  for (const char* sql : {"PRAGMA user_version=99", "PRAGMA application_id=7"}) {
    fs::remove(File() + ".unreadable");
    Open();
    sqlite3* other = nullptr;
    ASSERT_EQ(sqlite3_open(File().c_str(), &other), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(other, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(other);
    EXPECT_FALSE(Open()->open_note().empty()) << sql;
    EXPECT_TRUE(fs::exists(File() + ".unreadable")) << sql;
  }
}

TEST_F(StoreTest, LooksAtABoundedNumberOfRowsForAnAttempt) {
  auto store = Open();
  for (std::uint64_t i = 0; i < 21; ++i) ASSERT_TRUE(store->Commit(WithSteps("r", 1 + i * 10'000, 10'000, "old")).ok());
  ASSERT_TRUE(store->Commit(WithSteps("r", 300'000, 5, "new")).ok());
  const auto steps = store->reader()->ReadSteps({.run = "r", .attempt = "new"});
  EXPECT_TRUE(absl::IsResourceExhausted(steps.status())) << steps.status();
  EXPECT_EQ(store->reader()->ReadSteps({.run = "r", .attempt = "new", .after_sequence = 200'000})->size(), 5u);
  EXPECT_EQ(store->reader()->ReadSteps({.run = "r", .attempt = "old", .limit = 7})->size(), 7u);
}

TEST_F(StoreTest, DropsARunWithItsLedgerOnceItIsOldAndHasNoSteps) {
  auto opened = Store::Open({.directory = directory_, .max_age_ns = 1'000});
  ASSERT_TRUE(opened.ok());
  auto& store = **opened;
  Transaction t;
  for (const char* name : {"old", "young"}) {
    t.runs.push_back({name, "s", "j", std::string(name) == "old" ? 10 : 5'000});
    t.ledger.emplace_back(name, LedgerEntry{.action = Action::kRestart});
  }
  ASSERT_TRUE(store.Commit(t).ok());
  ASSERT_EQ(*store.CountLedger("old"), 1u);
  ASSERT_TRUE(store.Prune(5'500).ok());
  EXPECT_FALSE((*store.LoadRun("old")).has_value());
  EXPECT_EQ(*store.CountLedger("old"), 0u);
  EXPECT_TRUE((*store.LoadRun("young")).has_value());
  EXPECT_EQ(*store.CountLedger("young"), 1u);
  ASSERT_TRUE(store.Commit(t).ok());
  EXPECT_TRUE((*store.LoadRun("old")).has_value()) << "a run that comes back is written again";
}

TEST_F(StoreTest, NamesTheDirectoryThatCannotBeUsed) {
  { std::ofstream(directory_ + "/file") << "x"; }
  const auto store = Store::Open({.directory = directory_ + "/file/state"});
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find(directory_ + "/file/state"), std::string::npos) << store.status();
}

TEST_F(StoreTest, SaysResourceExhaustedOnAFullDiskAndWorksAgainOnceThereIsRoom) {
  if (geteuid() != 0 || mount("none", directory_.c_str(), "tmpfs", 0, "size=512k") != 0) GTEST_SKIP() << "cannot mount a small tmpfs here";
  {
    auto store = Open();
    absl::Status status;
    std::uint64_t next = 1;
    for (; next < 100'000 && status.ok(); next += 200) status = store->Commit(WithSteps("r", next, 200));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(store->reader()->ReadSteps({.run = "r", .limit = 1'000'000})->size(), next - 1 - 200) << "the failed transaction left something";
    ASSERT_EQ(mount("none", directory_.c_str(), "tmpfs", MS_REMOUNT, "size=8m"), 0);
    EXPECT_TRUE(store->Commit(WithSteps("r", next, 200)).ok());
  }
  umount2(directory_.c_str(), MNT_DETACH);
}

TEST(Store, WithoutADirectoryManagesWithATemporaryOneThatIsNoDirectoryOrALink) {
  const ScratchDirectory scratch;
  const char* const found = getenv("TMPDIR");
  const std::string before = found == nullptr ? "" : found;
  std::filesystem::create_directory_symlink(scratch.path(), scratch / "link");
  for (const std::string& place : {scratch / "nowhere", scratch / "link"}) {
    setenv("TMPDIR", place.c_str(), 1);
    const auto store = Store::Open({});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->Commit(WithSteps("r", 1, 3)).ok());
  }
  before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1);
}

TEST(Store, WithoutADirectoryLeavesNothingBehind) {
  auto store = Store::Open({});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit(WithSteps("r", 1, 3)).ok());
  EXPECT_EQ((*store)->reader()->ReadSteps({.run = "r"})->size(), 3u);
}

}  // namespace
}  // namespace lossgauge::state
