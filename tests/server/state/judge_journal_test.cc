// A journal tells again what a judge was told, each kind of entry in its order, and refuses bytes that are none.
#include "server/state/judge_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/state/journal_reader.h"
#include "tests/server/fake_judge.h"
#include "tests/server/state/run_book_fixture.h"

namespace lossgauge::state {
namespace {

using ::testing::ElementsAre;

// What it is told, as text.
class WrittenDown final : public JournalSink {
 public:
  void OnBeginning(const JournalBeginning& beginning) override { told.push_back("begins " + beginning.judge + (beginning.goes_on ? " goes on" : "")); }
  void OnPolicy(const PolicyView&) override { told.push_back("policy"); }
  void OnStep(const JoinedStep& step) override {
    told.push_back("step " + std::to_string(step.summary.step) + " of " + std::to_string(step.samples.size()) + " tokens " +
                   std::to_string(step.summary.finite_tokens));
  }
  void OnEvent(const ProducerEvent& event) override { told.push_back("event " + event.text + " at " + std::to_string(event.receive_time_ns)); }
  void OnLoss(const LossReport& report) override {
    told.push_back("lost " + std::to_string(report.records) + " from " + std::to_string(report.first_publication));
  }
  void OnPresence(const Presence& presence) override {
    told.push_back("presence " + presence.newest_attempt + " at " + std::to_string(presence.now_ns));
    for (const LivenessReport& report : presence.producers) {
      told.push_back("rank " + std::to_string(report.producer->layout.rank) + (report.producer_state == ProducerState::kLost ? " lost" : "") +
                     (report.drained ? " drained" : "") + " entered " + std::to_string(report.entered_step));
    }
  }
  void OnAction(const LedgerEntry& entry) override { told.push_back("action of " + entry.actor); }
  void OnAcknowledge(const std::string& id, const Acknowledgement& by) override { told.push_back(id + " acknowledged by " + by.by); }
  void OnMode(const std::string& mode) override { told.push_back("mode " + mode); }
  void OnSibling(const std::string& id, const std::string& sibling, TimeNs now_ns) override {
    told.push_back(id + " beside " + sibling + " at " + std::to_string(now_ns));
  }
  void OnVerdict(TimeNs now_ns, std::uint64_t hash) override { told.push_back("verdict at " + std::to_string(now_ns) + " " + std::to_string(hash)); }
  std::vector<std::string> told;
};

class JudgeJournalTest : public ::testing::Test {
 protected:
  JudgeJournalTest() {
    JournalOptions options;
    options.on = true;
    journal_ = std::make_unique<JournaledJudge>(judges_.MakeJudge("run"), options);
  }
  JoinedStep Step(std::int64_t step) {
    std::vector<RankSample> samples;
    for (Rank* rank : {&a_, &b_}) {
      samples.push_back(rank->Step(step, 100 + step));
      samples.back().record.boot_ns = 0;
    }
    return JoinSamples(std::move(samples));
  }
  // Nothing for bytes that are refused.
  std::vector<std::string> Read(const std::string& bytes) {
    WrittenDown sink;
    JournalReader reader("run", &sink);
    return reader.Read(bytes).ok() ? sink.told : std::vector<std::string>();
  }

  testing::FakeJudges judges_;
  std::unique_ptr<JournaledJudge> journal_;
  Rank a_{"run", "1", 0, 2, 1}, b_{"run", "1", 1, 2, 2};
};

TEST_F(JudgeJournalTest, EachKindOfEntryIsToldAgain) {
  journal_->OnStep(Step(0));
  journal_->OnEvent(a_.Event(LG_EVENT_CHECKPOINT, 7, 200));
  LossReport loss;
  loss.producer = b_.info;
  loss.first_publication = 5;
  loss.records = 3;
  journal_->OnLoss(loss);
  Presence presence;
  presence.now_ns = 300;
  presence.newest_attempt = "1";
  presence.producers = {a_.Look(ProducerState::kLive, 290), b_.Look(ProducerState::kLost, 295, true)};
  presence.producers[1].entered_step = 4;
  journal_->OnPresence(presence);
  journal_->OnAction({.actor = "slurm"});
  (void)journal_->Acknowledge("i-1", {.by = "ann"});
  journal_->SetMode("shadow");
  journal_->NameSibling("i-1", "other", 310);
  EXPECT_TRUE(journal_->Replace(judges_.MakeJudge("run")));
  Verdict verdict;
  verdict.evaluated_at_ns = 320;
  journal_->NoteVerdict(verdict);
  journal_->OnStep(Step(1));
  const JournalPart part = journal_->Take(400);
  EXPECT_TRUE(part.begins);
  EXPECT_THAT(Read(part.bytes),
              ElementsAre("begins 0", "step 0 of 2 tokens 20", "event /ckpt/7 at 200", "lost 3 from 5", "presence 1 at 300", "rank 0 entered -1",
                          "rank 1 lost drained entered 4", "action of slurm", "i-1 acknowledged by ann", "mode shadow", "i-1 beside other at 310", "policy",
                          "verdict at 320 " + std::to_string(VerdictHash(verdict)), "step 1 of 2 tokens 20"));
}

TEST_F(JudgeJournalTest, APartThatGoesOnIsReadAfterTheOneBeforeItAndNotAlone) {
  journal_->OnStep(Step(0));
  const JournalPart first = journal_->Take(100);
  journal_->OnStep(Step(1));
  const JournalPart second = journal_->Take(200);
  EXPECT_FALSE(second.begins);
  EXPECT_THAT(Read(first.bytes + second.bytes), ElementsAre("begins 0", "step 0 of 2 tokens 20", "step 1 of 2 tokens 20"));
  WrittenDown sink;
  JournalReader alone("run", &sink);
  EXPECT_TRUE(alone.Read(second.bytes).ok());
  EXPECT_TRUE(sink.told.empty());
}

TEST_F(JudgeJournalTest, BytesThatWereCutOrNameWhoWasNeverToldAreRefused) {
  journal_->OnStep(Step(0));
  const JournalPart first = journal_->Take(100);
  EXPECT_TRUE(Read(first.bytes.substr(0, first.bytes.size() - 1)).empty());
  journal_->SetMode("");
  const std::string begun = first.bytes + journal_->Take(110).bytes;
  ASSERT_FALSE(Read(begun).empty());
  for (const char kind : {4, 5, 6, 99}) EXPECT_TRUE(Read(begun + kind + std::string(16, '\x09')).empty()) << int{kind};
}

}  // namespace
}  // namespace lossgauge::state
