// A5: saved and restored, damaged, of another version; and the same calls give the same bits.
#include <gtest/gtest.h>

#include "tests/server/detect/judge_fixture.h"

namespace lossgauge::testing {
namespace {

TEST(JudgeState, ASpikeAtTheVeryNextStepAfterARestartIsFoundAtOnce) {
  JudgeScript job;
  job.Steps(1000, 2.2);
  job.Restart();
  job.Look();
  EXPECT_EQ(job.Verdict().action, Action::kContinue) << job.Verdict().reason;
  job.Steps(1, 5.1);
  EXPECT_TRUE(job.IsOpen(Condition::kBlip) || job.IsOpen(Condition::kLossSpike));
}

TEST(JudgeState, DamagedBytesGiveACleanStartThatSaysWarming) {
  JudgeScript job;
  job.Steps(1000, 2.2);
  const std::string good = job.judge->Save();
  std::string older = good;
  older[4] = 0;
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  for (const std::string& bytes : {good.substr(0, good.size() - 1), good.substr(0, 7), std::string(), std::string(5000, 'x'), older, flipped}) {
    detect::Judge judge("run", job.policy);
    EXPECT_FALSE(judge.Restore(bytes).ok());
    judge.OnStep(job.MakeStep({.loss = 2.2}));
    const state::Verdict verdict = judge.Evaluate(job.now_ns);
    EXPECT_EQ(verdict.action, Action::kUnknown);
    EXPECT_EQ(verdict.reason_codes[0], "warming");
    EXPECT_NE(verdict.reason.find("could not be read"), std::string::npos);
  }
}

TEST(JudgeState, TheErrorNamesTheVersions) {
  JudgeScript job;
  std::string bytes = job.judge->Save();
  bytes[4] = 77;
  detect::Judge judge("run", job.policy);
  const absl::Status status = judge.Restore(bytes);
  EXPECT_NE(status.message().find("version 77"), std::string::npos) << status;
}

// Everything that a run can have gone through.
void Story(JudgeScript& job, const std::function<void()>& between) {
  job.Steps(300, 2.2);
  between();
  job.Checkpoint(250, "/ckpt/250");
  for (int i = 0; i < 9; ++i) {
    job.Step({.loss = kBloomLoss[i], .grad_norm = kBloomGradNorm[i], .max_abs_logit = 20.0 + i});
    between();
  }
  job.Look();
  job.Steps(10, 2.2);
  between();
  job.Step({.loss = 2.2, .missing_ranks = {1}});
  job.Step({.nonfinite_rows = 3});
  between();
  job.Steps(80, 2.28);
  between();
  EXPECT_EQ(job.Opened(Condition::kLevelShift), 1u);
  job.WaitLooking(100);
  between();
  job.Look([](std::uint32_t, state::LivenessReport& report) { report.producer_state = state::ProducerState::kLost; });
  between();
  job.NewAttempt("2", 251);
  job.Steps(60, 2.2);
  job.Look();
  between();
}

TEST(JudgeState, RestoringAtAnyPointChangesNothingThatFollows) {
  JudgeScript straight(detect::DefaultPolicies().defaults, 2);
  JudgeScript restarted(detect::DefaultPolicies().defaults, 2);
  std::vector<std::string> straight_states;
  std::vector<std::string> restarted_states;
  Story(straight, [&] { straight_states.push_back(straight.judge->Save()); });
  Story(restarted, [&] {
    restarted_states.push_back(restarted.judge->Save());
    restarted.Restart();
  });
  ASSERT_EQ(straight_states.size(), restarted_states.size());
  for (std::size_t i = 0; i < straight_states.size(); ++i) EXPECT_TRUE(straight_states[i] == restarted_states[i]) << "point " << i;
  EXPECT_EQ(straight.Verdict().reason, restarted.Verdict().reason);
  EXPECT_EQ(straight.OpenedInAll(), restarted.OpenedInAll());
}

std::string Bits(const state::Verdict& verdict) {
  std::string text = verdict.reason + verdict.escalates + verdict.policy_version + std::to_string(verdict.evaluated_at_ns) +
                     std::to_string(static_cast<int>(verdict.action));
  for (const auto& code : verdict.reason_codes) text += code;
  for (const auto& item : verdict.evidence) {
    text += item.name + item.unit + item.text;
    text.append(reinterpret_cast<const char*>(&item.value), sizeof item.value);
  }
  return text;
}

TEST(JudgeState, TheSameCallsGiveTheSameBits) {
  std::string first;
  for (int run = 0; run < 2; ++run) {
    JudgeScript job(detect::DefaultPolicies().defaults, 2);
    std::string bits;
    Story(job, [&] { bits += Bits(job.Verdict()) + job.judge->Save(); });
    if (run == 0) {
      first = bits;
    } else {
      EXPECT_EQ(first, bits);
    }
  }
}

TEST(JudgeState, StaysSmall) {
  JudgeScript job(detect::DefaultPolicies().defaults, 2);
  std::size_t largest = 0;
  Story(job, [&] { largest = std::max(largest, job.judge->Save().size()); });
  for (int i = 0; i < 100; ++i) {
    job.Steps(3, 5.0);
    job.Steps(40, 2.2);
    job.Checkpoint(job.next_step, "/checkpoints/some/long/path/of/a/run/step_" + std::to_string(job.next_step));
  }
  largest = std::max(largest, job.judge->Save().size());
  EXPECT_LT(largest, 12u * 1024);
  EXPECT_GT(largest, 1000u);
}

TEST(JudgeState, IncidentsKeepTheirIdsCountersAndAcknowledgements) {
  JudgeScript job;
  job.Steps(100, 2.2);
  job.Steps(3, 5.0);
  const state::Incident before = *job.FindOpen(Condition::kLossSpike);
  ASSERT_TRUE(job.judge->Acknowledge(before.id, {"ann", "looking", job.now_ns}));
  EXPECT_FALSE(job.judge->Acknowledge("nobody-1", {}));
  job.Restart();
  const state::Incident after = *job.FindOpen(Condition::kLossSpike);
  EXPECT_EQ(after.id, before.id);
  EXPECT_EQ(after.summary, before.summary);
  EXPECT_EQ(after.evidence.size(), before.evidence.size());
  EXPECT_EQ(after.acknowledged->by, "ann");
  EXPECT_EQ(job.Opened(Condition::kLossSpike), 1u);
}

}  // namespace
}  // namespace lossgauge::testing
