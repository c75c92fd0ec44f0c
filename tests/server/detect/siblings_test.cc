// Two runs over the same data through one run book with the real judges.
#include <gtest/gtest.h>

#include "proto/lossgauge/ring/fixed128.h"
#include "server/state/run_book.h"
#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

class Siblings : public ::testing::Test {
 protected:
  Siblings() {
    auto store = state::Store::Open({});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    book_ = std::make_unique<state::RunBook>(state::RunBookOptions{}, &judges_, store_.get(), now_);
    EXPECT_TRUE(book_->Load(now_).ok());
  }
  // A run of 260 steps whose batch of step 200 is odd. `fingerprint` 0: the job gives none.
  void Train(const std::string& run, std::uint64_t segment, std::uint64_t fingerprint, std::uint64_t tokens = 1024) {
    auto info = std::make_shared<state::ProducerInfo>();
    info->segment.words[0] = segment;
    info->run = run;
    info->attempt = "1";
    info->attempt_start_ns = 1;
    info->layout.world_size = 1;
    info->layout.dp = info->layout.tp = info->layout.pp = info->layout.cp = info->layout.ep = {1, 0};
    info->layout.has_loss = 1;
    ASSERT_TRUE(book_->OnProducer(info));
    Noise noise(segment, 0.02);
    for (int step = 0; step < 260; ++step) {
      now_ += kSecond;
      state::RankSample sample;
      sample.producer = info;
      sample.publication = static_cast<std::uint64_t>(step) + 1;
      sample.receive_time_ns = now_;
      lg_step_record& record = sample.record;
      record.step = step;
      record.present = LG_HAS_LOSS;
      record.tokens = record.unmasked_tokens = record.finite_tokens = tokens;
      record.nll_sum = lg_fixed128_from_double((2.2 + noise.Next() + (step == 200 ? 0.6 : 0)) * static_cast<double>(tokens));
      if (fingerprint != 0) {
        record.present |= LG_HAS_LOGITS;
        record.target_fingerprint = fingerprint + static_cast<std::uint64_t>(step);
      }
      record.total_steps = static_cast<std::uint64_t>(step) + 1;
      book_->OnSample(std::move(sample));
      book_->Advance(now_, true);
    }
    book_->Advance(now_ += kSecond, true);
  }
  state::Incident Blip(const std::string& run) {
    const auto snapshot = state::FindRun(*book_->BuildSnapshot(now_, {}), run);
    for (const state::Incident& incident : snapshot->incidents) {
      if (incident.condition == Condition::kBlip && incident.peak_step == 200) return incident;
    }
    ADD_FAILURE() << "no blip in " << run;
    return {};
  }
  static std::string SiblingOf(const state::Incident& incident) {
    for (const state::Evidence& item : incident.evidence) {
      if (item.name == "sibling") return item.text;
    }
    return "";
  }

  state::TimeNs now_ = 1'800'000'000 * kSecond;
  detect::DetectorJudgeFactory judges_{detect::DefaultPolicies()};
  std::unique_ptr<state::Store> store_;
  std::unique_ptr<state::RunBook> book_;
};

TEST_F(Siblings, TheSameBlipAtTheSameStepOfTheSameDataIsNamedInBoth) {
  Train("a", 1, 5000);
  EXPECT_EQ(SiblingOf(Blip("a")), "");
  Train("b", 2, 5000);
  EXPECT_EQ(SiblingOf(Blip("a")), "b");
  EXPECT_EQ(SiblingOf(Blip("b")), "a");
  EXPECT_NE(Blip("b").summary.find("run 'a' had the same at this step: the data did it"), std::string::npos) << Blip("b").summary;
  EXPECT_EQ(Blip("b").severity, state::Severity::kInfo);
}

TEST_F(Siblings, ARestartBetweenThemForgetsNeither) {
  Train("a", 1, 5000);
  ASSERT_TRUE(store_->Commit(book_->BuildTransaction(now_)).ok());
  book_->OnCommitted();
  book_ = std::make_unique<state::RunBook>(state::RunBookOptions{}, &judges_, store_.get(), now_);
  ASSERT_TRUE(book_->Load(now_).ok());
  book_->Advance(now_, true);
  Train("b", 2, 5000);
  EXPECT_EQ(SiblingOf(Blip("b")), "a");
  EXPECT_EQ(SiblingOf(Blip("a")), "b");
}

TEST_F(Siblings, OtherDataAtTheSameStepIsNoSibling) {
  Train("a", 1, 5000);
  Train("b", 2, 900'000);
  EXPECT_EQ(SiblingOf(Blip("a")), "");
  EXPECT_EQ(SiblingOf(Blip("b")), "");
}

TEST_F(Siblings, WithoutFingerprintsTheNumberOfTargetsDecides) {
  Train("a", 1, 0);
  Train("b", 2, 0);
  Train("c", 3, 0, 2048);
  EXPECT_EQ(SiblingOf(Blip("b")), "a");
  EXPECT_EQ(SiblingOf(Blip("c")), "");
}

}  // namespace
}  // namespace lossgauge::testing
