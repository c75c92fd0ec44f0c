// The example job as its users see it: whole processes on real text. Each fault is checked by what it does to the job's own numbers and, where
// the gauge is to see it, by the records in the ring.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/fixed128.h"
#include "tests/client/job.h"
#include "tests/scratch_directory.h"

namespace lossgauge::train_text {
namespace {

constexpr char kBits[] = "--print_loss_bits";

class TrainText : public testing::Test {
 protected:
  // With a ring of its own.
  JobResult Run(std::vector<std::string> flags) {
    flags.push_back("--ring_dir=" + directory_.path());
    return RunJob(flags);
  }
  std::vector<lg_step_record> Records(std::uint32_t rank = 0) {
    std::vector<lg_step_record> records;
    for (const lg_step_record& record : ReadStepRecords(directory_.path(), rank)) {
      if (record.block == 0) records.push_back(record);
    }
    return records;
  }
  const ScratchDirectory directory_;
};

std::string BitsOf(const JobResult& job) { return job.Line("loss_bits") + " " + job.Line("weight_bits"); }

TEST_F(TrainText, LossFallsFromChanceToBelowTwoPointTwoNatsIn300Steps) {
  const JobResult job = Run({"--steps=300"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  ASSERT_EQ(job.log.size(), 300u);
  EXPECT_NEAR(job.log[0].loss, std::log(257.0), 0.2);
  EXPECT_LT(job.MeanLoss(280, 300), 2.2);
  EXPECT_GT(job.MeanLoss(280, 300), 0.5) << "too good to be true";
}

TEST_F(TrainText, ACleanRunIsCalm) {
  const JobResult job = Run({"--steps=400"});
  // Each step against the mean of the 20 before and after it.
  for (std::int64_t step = 150; step < 380; ++step) {
    const double around = (job.MeanLoss(step - 20, step) + job.MeanLoss(step + 1, step + 21)) / 2;
    EXPECT_NEAR(job.log[static_cast<std::size_t>(step)].loss, around, 0.15) << "step " << step;
  }
}

TEST_F(TrainText, TheRingHoldsWhatTheJobSaw) {
  const JobResult job = Run({"--steps=40", "--ranks=2", "--micro_batches=2", "--label_smoothing=0.05"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  const auto first = Records(0), second = Records(1);
  ASSERT_EQ(first.size(), 40u);
  ASSERT_EQ(second.size(), 40u);
  for (std::size_t i = 0; i < 40; ++i) {
    const LoggedStep& log = job.log[i];
    EXPECT_EQ(first[i].step, log.step);
    EXPECT_EQ(first[i].micro_batches, 2u);
    EXPECT_EQ(static_cast<double>(first[i].unmasked_tokens + second[i].unmasked_tokens), log.unmasked);
    const double objective = lg_fixed128_to_double(first[i].objective_sum) + lg_fixed128_to_double(second[i].objective_sum);
    EXPECT_NEAR(objective / log.unmasked, log.loss, 1e-6 * log.loss);
    EXPECT_NEAR(first[i].reported_loss, log.loss, 1e-6 * log.loss);
    EXPECT_NEAR(first[i].grad_norm, log.grad_norm, 1e-6 * log.grad_norm);
    EXPECT_NEAR(first[i].learning_rate, log.learning_rate, 1e-6 * log.learning_rate);
    // Gradients are averaged over two ranks: D / R, on each rank and in each micro-batch.
    for (const lg_step_record& record : {first[i], second[i]}) {
      EXPECT_EQ(record.denominator_min, log.unmasked / 2);
      EXPECT_EQ(record.denominator_max, log.unmasked / 2);
      EXPECT_LE(record.target_bytes, record.finite_tokens) << "bytes as tokens; an end token has none";
      EXPECT_GT(record.target_bytes, record.finite_tokens - 40);
    }
  }
}

TEST_F(TrainText, GivesTheSameBitsWithTelemetryOnOffAndFailing) {
  const std::vector<std::string> flags = {"--steps=60", "--eval_every=25", kBits};
  const JobResult on = Run(flags);
  ASSERT_EQ(on.exit_code, 0) << on.errors;
  ASSERT_NE(on.Line("loss_bits"), "");
  EXPECT_EQ(Records().size(), 60u);
  std::vector<std::string> off = flags, failing = flags;
  off.push_back("--no_telemetry");
  failing.push_back("--ring_dir=/proc/no/such/place");
  EXPECT_EQ(BitsOf(RunJob(off)), BitsOf(on));
  const JobResult failed = RunJob(failing);
  EXPECT_EQ(failed.exit_code, 0);
  EXPECT_EQ(BitsOf(failed), BitsOf(on));
  EXPECT_NE(failed.errors.find("telemetry is off, training goes on"), std::string::npos) << failed.errors;
  EXPECT_NE(failed.errors.find("/proc/no/such/place"), std::string::npos) << failed.errors;
}

TEST_F(TrainText, AHeadComputedWithItsLossGivesTheSameCurve) {
  const std::vector<std::string> flags = {"--steps=30", "--micro_batches=2", "--label_smoothing=0.05", "--eval_every=15"};
  std::vector<std::string> linear = flags;
  linear.push_back("--linear_head");
  const JobResult whole = RunJob(flags), job = Run(linear);
  ASSERT_EQ(job.log.size(), 30u) << job.errors;
  EXPECT_NEAR(job.log[0].loss, whole.log[0].loss, 1e-6) << "before rounding errors of products have grown through the updates";
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_NEAR(job.log[i].loss, whole.log[i].loss, 1e-4) << i;
    EXPECT_NEAR(job.log[i].grad_norm, whole.log[i].grad_norm, 1e-4) << i;
    EXPECT_EQ(job.log[i].unmasked, whole.log[i].unmasked);
  }
  for (const char* line : {"step     14  held-out loss", "step     29  held-out loss"}) {
    EXPECT_EQ(job.Line(line).substr(0, 34), whole.Line(line).substr(0, 34)) << "to four digits";
  }
  for (const lg_step_record& record : Records()) {
    EXPECT_EQ(record.micro_batches, 2u);
    EXPECT_NE(record.present & LG_HAS_HIDDEN_GRAD, 0u);
    ASSERT_NE(record.present & LG_HAS_HEAD_GRAD, 0u);
    // The head's gradient is a part of the whole.
    const double head = std::sqrt(lg_fixed128_to_double(record.head_grad_sq_sum)) / record.denominator_min;
    EXPECT_GT(head, 0.05 * job.log[static_cast<std::size_t>(record.step)].grad_norm);
    EXPECT_LT(head, 1.0001 * job.log[static_cast<std::size_t>(record.step)].grad_norm);
  }
}

TEST_F(TrainText, AHeadComputedWithItsLossHasTheSameBitsWithAnyThreadsAndShowsPoison) {
  const JobResult one = RunJob({"--steps=10", "--no_telemetry", "--linear_head", kBits});
  ASSERT_NE(one.Line("loss_bits"), "") << one.errors;
  EXPECT_EQ(BitsOf(one), BitsOf(RunJob({"--steps=10", "--no_telemetry", "--linear_head", kBits, "--threads=2"})));
  ASSERT_EQ(Run({"--steps=12", "--linear_head", "--fault=nan_once", "--fault_step=10"}).exit_code, 0);
  for (const lg_step_record& record : Records()) {
    EXPECT_EQ(record.nonfinite_rows, record.step == 10 ? 1u : 0u);
    EXPECT_EQ((record.present & LG_HAS_HEAD_GRAD) != 0, record.step != 10) << "a head's gradient that is not finite has no norm";
  }
}

TEST_F(TrainText, TheSeedDecidesTheBits) {
  const JobResult one = RunJob({"--steps=5", "--no_telemetry", kBits}), two = RunJob({"--steps=5", "--no_telemetry", kBits, "--seed=2"});
  EXPECT_NE(one.Line("loss_bits"), two.Line("loss_bits"));
}

TEST_F(TrainText, ThreadsDoNotChangeABit) {
  const JobResult one = RunJob({"--steps=20", "--no_telemetry", kBits}), two = RunJob({"--steps=20", "--no_telemetry", kBits, "--threads=2"});
  EXPECT_EQ(BitsOf(one), BitsOf(two));
}

// Case B01 and B02: a ratio of sums does not know how the step was cut.
TEST_F(TrainText, TheCurveDoesNotDependOnHowAStepIsCut) {
  const JobResult whole = RunJob({"--steps=30", "--no_telemetry"});
  for (const std::vector<std::string>& cut : {std::vector<std::string>{"--micro_batches=4"}, {"--ranks=2"}, {"--ranks=2", "--gradient_reduction=sum"}}) {
    std::vector<std::string> flags = {"--steps=30", "--no_telemetry"};
    flags.insert(flags.end(), cut.begin(), cut.end());
    const JobResult parts = RunJob(flags);
    ASSERT_EQ(parts.log.size(), 30u) << parts.errors;
    for (std::size_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(parts.log[i].loss, whole.log[i].loss, 1e-3) << cut[0] << " step " << i;
      EXPECT_NEAR(parts.log[i].grad_norm, whole.log[i].grad_norm, 1e-3) << cut[0] << " step " << i;
    }
  }
}

TEST_F(TrainText, ResumesWithTheSameBits) {
  const ScratchDirectory checkpoints;
  const std::vector<std::string> flags = {"--ranks=2", kBits, "--checkpoint_dir=" + checkpoints.path(), "--resume=latest"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  const JobResult whole = RunJob({"--steps=50", "--ranks=2", kBits, "--no_telemetry"});
  ASSERT_EQ(Run(with({"--steps=30", "--checkpoint_every=10"})).exit_code, 0);
  const JobResult rest = Run(with({"--steps=50"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.errors;
  ASSERT_EQ(rest.log.size(), 20u);
  EXPECT_EQ(rest.log[0].step, 30);
  EXPECT_EQ(BitsOf(rest), BitsOf(whole));
}

TEST_F(TrainText, ResumesFromTheCheckpointBeforeOneThatIsDamaged) {
  const ScratchDirectory checkpoints;
  const std::string dir = "--checkpoint_dir=" + checkpoints.path();
  ASSERT_EQ(RunJob({"--steps=20", "--no_telemetry", dir, "--checkpoint_every=10"}).exit_code, 0);
  ASSERT_EQ(truncate((checkpoints.path() + "/step-00000019.ckpt").c_str(), 1000), 0);
  const JobResult rest = RunJob({"--steps=21", "--no_telemetry", dir, "--resume=latest"});
  EXPECT_EQ(rest.exit_code, 0);
  EXPECT_NE(rest.errors.find("step-00000019.ckpt"), std::string::npos);
  ASSERT_FALSE(rest.log.empty());
  EXPECT_EQ(rest.log[0].step, 10);
}

TEST_F(TrainText, RefusesACheckpointOfAnotherShape) {
  const ScratchDirectory checkpoints;
  ASSERT_EQ(RunJob({"--steps=1", "--no_telemetry", "--checkpoint_dir=" + checkpoints.path(), "--checkpoint_every=1"}).exit_code, 0);
  const JobResult job = RunJob({"--steps=2", "--no_telemetry", "--hidden=32", "--resume=" + checkpoints.path() + "/step-00000000.ckpt"});
  EXPECT_EQ(job.exit_code, 1);
  EXPECT_NE(job.errors.find("--hidden"), std::string::npos) << job.errors;
}

TEST_F(TrainText, TellsTheGaugeOfEvaluationsCheckpointsAndItsEnd) {
  const ScratchDirectory checkpoints;
  ASSERT_EQ(Run({"--steps=20", "--eval_every=10", "--checkpoint_every=20", "--checkpoint_dir=" + checkpoints.path()}).exit_code, 0);
  std::vector<std::uint64_t> kinds;
  double evaluated = 0;
  std::string path;
  for (const lg_event_record& event : ReadEvents(directory_.path(), 0)) {
    kinds.push_back(event.kind);
    if (event.kind == LG_EVENT_EVALUATION) evaluated = event.value;
    if (event.kind == LG_EVENT_CHECKPOINT) path = event.text;
  }
  EXPECT_EQ(kinds, (std::vector<std::uint64_t>{LG_EVENT_PHASE_BEGIN, LG_EVENT_EVALUATION, LG_EVENT_PHASE_END, LG_EVENT_PHASE_BEGIN, LG_EVENT_CHECKPOINT,
                                               LG_EVENT_PHASE_END, LG_EVENT_PHASE_BEGIN, LG_EVENT_EVALUATION, LG_EVENT_PHASE_END, LG_EVENT_END}));
  EXPECT_EQ(path, checkpoints.path() + "/step-00000019.ckpt");
  EXPECT_GT(evaluated, 1);
  EXPECT_LT(evaluated, 6);
  // Evaluations are counted apart: the training step's tokens are those of the batch.
  for (const lg_step_record& record : Records()) EXPECT_EQ(record.tokens, 256u * 16u);
}

TEST_F(TrainText, TrainsOnLearntBytePairsWithTheBytesOfEach) {
  const JobResult job = Run({"--steps=60", "--vocab_size=600", "--label_smoothing=0.1"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  EXPECT_NEAR(job.log[0].loss, std::log(600.0), 0.3);
  EXPECT_LT(job.log[59].loss, job.log[0].loss - 0.5);
  for (const lg_step_record& record : Records()) EXPECT_GT(record.target_bytes, record.finite_tokens * 3 / 2);
}

TEST_F(TrainText, StopsCleanlyWhenAskedAtTheSameStepOnEveryRank) {
  for (const std::string ranks : {"1", "2"}) {
    const ScratchDirectory ring;
    const JobResult job = RunJob({"--steps=100000", "--ranks=" + ranks, "--ring_dir=" + ring.path()}, [](pid_t pid) { kill(pid, SIGTERM); });
    EXPECT_EQ(job.exit_code, 0) << job.errors;
    EXPECT_LT(job.log.size(), 100000u);
    for (std::uint32_t rank = 0; rank < (ranks == "1" ? 1u : 2u); ++rank) {
      const auto records = ReadStepRecords(ring.path(), rank);
      ASSERT_FALSE(records.empty());
      EXPECT_EQ(records.back().step, job.log.back().step);
      EXPECT_EQ(ReadEvents(ring.path(), rank).back().count, static_cast<std::uint64_t>(LG_CLOSE_FINISHED));
    }
  }
}

TEST_F(TrainText, ARankThatStopsEnteringStepsIsNamedAndTheJobEndsAsFailed) {
  const JobResult job = Run({"--steps=50", "--ranks=2", "--fault=stop_rank", "--fault_step=10", "--barrier_timeout_s=3"});
  EXPECT_EQ(job.exit_code, 1);
  EXPECT_NE(job.errors.find("rank 0: step 10: all-reduce: did not arrive within 3 s: rank 1"), std::string::npos) << job.errors;
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto events = ReadEvents(directory_.path(), rank);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().kind, static_cast<std::uint64_t>(LG_EVENT_END));
    EXPECT_EQ(events.back().count, static_cast<std::uint64_t>(LG_CLOSE_FAILED));
  }
  EXPECT_EQ(Records(0).size(), 10u);
  EXPECT_EQ(Records(1).size(), 10u);
}

TEST_F(TrainText, SpikeJumpsWithMaxLogitAndComesBackByItselfWithin30Steps) {
  const JobResult job = Run({"--steps=450", "--fault=spike", "--fault_step=400"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  const double before = job.MeanLoss(380, 400);
  for (std::int64_t step = 400; step < 404; ++step) EXPECT_GT(job.log[static_cast<std::size_t>(step)].loss, before + 0.5) << step;
  EXPECT_NEAR(job.MeanLoss(430, 450), before, 0.15);
  const auto records = Records();
  ASSERT_EQ(records.size(), 450u);
  EXPECT_GT(records[400].max_abs_logit, 1.5 * records[399].max_abs_logit);
  EXPECT_EQ(records[400].nonfinite_rows, 0u);
  // log Z jumps and comes back: the normaliser blew up and was pulled in again.
  EXPECT_GT(job.log[400].mean_log_z, 1.5 * job.log[399].mean_log_z);
  EXPECT_LT(job.log[430].mean_log_z, (job.log[399].mean_log_z + job.log[400].mean_log_z) / 2);
  // Counts say nothing: it was not the mask.
  EXPECT_NEAR(job.log[400].unmasked / job.log[399].unmasked, 1, 0.1);
}

TEST_F(TrainText, DivergenceRisesAndDoesNotRecover) {
  const JobResult job = Run({"--steps=330", "--fault=divergence", "--fault_step=200"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  const double before = job.MeanLoss(180, 200);
  EXPECT_GT(job.MeanLoss(202, 230), before + 1);
  EXPECT_GT(job.MeanLoss(300, 330), before + 1);
  for (const LoggedStep& s : job.log) EXPECT_TRUE(std::isfinite(s.loss)) << s.step;
}

TEST_F(TrainText, ANanWeightPersists) {
  const JobResult job = Run({"--steps=40", "--fault=nan", "--fault_step=20"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  for (const lg_step_record& record : Records()) {
    EXPECT_EQ(record.nonfinite_rows, record.step < 20 ? 0 : record.unmasked_tokens) << record.step;
  }
  for (const LoggedStep& s : job.log) EXPECT_EQ(std::isnan(s.loss), s.step >= 20) << s.step;
}

TEST_F(TrainText, OnePoisonedRowIsSkippedAndHarmsNothingElse) {
  const JobResult job = Run({"--steps=40", "--ranks=2", "--fault=nan_once", "--fault_step=20", "--fault_rank=1"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  for (const std::uint32_t rank : {0u, 1u}) {
    for (const lg_step_record& record : Records(rank)) EXPECT_EQ(record.nonfinite_rows, rank == 1 && record.step == 20 ? 1u : 0u);
  }
  for (const LoggedStep& s : job.log) {
    EXPECT_EQ(s.updated, s.step != 20);
    EXPECT_EQ(std::isfinite(s.grad_norm), s.step != 20);
  }
  EXPECT_LT(job.log[39].loss, job.log[19].loss);
}

TEST_F(TrainText, MeanOfMeansDividesEachMicroBatchByItsOwnCount) {
  const JobResult job = Run({"--steps=30", "--ranks=2", "--micro_batches=2", "--fault=mean_of_means", "--fault_step=10"});
  ASSERT_EQ(job.exit_code, 0) << job.errors;
  const auto first = Records(0), second = Records(1);
  for (std::size_t i = 0; i < 30; ++i) {
    const double right = job.log[i].unmasked / 2;
    if (i < 10) {
      EXPECT_EQ(first[i].denominator_min, right);
      EXPECT_EQ(second[i].denominator_max, right);
    } else {
      // Two launches that divide by what each of them has.
      EXPECT_EQ(first[i].denominator_min + first[i].denominator_max, static_cast<double>(first[i].unmasked_tokens));
      EXPECT_EQ(second[i].denominator_min + second[i].denominator_max, static_cast<double>(second[i].unmasked_tokens));
    }
  }
  EXPECT_NEAR(job.log[29].reported_loss, job.log[29].loss, 1e-9) << "the log stays right: only the gradient is wrong";
}

TEST_F(TrainText, WrongDenominatorCountsMaskedPositions) {
  const JobResult right = RunJob({"--steps=11", "--no_telemetry"});
  const JobResult job = Run({"--steps=11", "--fault=wrong_denominator", "--fault_step=10"});
  EXPECT_EQ(Records()[10].denominator_min, 256 * 16);
  EXPECT_NEAR(job.log[10].grad_norm / right.log[10].grad_norm, job.log[10].unmasked / (256 * 16), 1e-4);
  EXPECT_LT(job.log[10].unmasked, 256 * 16);
}

TEST_F(TrainText, LocalReportIsEachRanksOwnLoss) {
  const JobResult job = Run({"--steps=12", "--ranks=2", "--fault=local_report", "--fault_step=10"});
  const auto first = Records(0), second = Records(1);
  EXPECT_EQ(first[9].reported_loss, second[9].reported_loss);
  for (const lg_step_record& record : {first[11], second[11]}) {
    EXPECT_NEAR(record.reported_loss, lg_fixed128_to_double(record.objective_sum) / static_cast<double>(record.finite_tokens), 1e-5);
  }
  EXPECT_NE(first[11].reported_loss, second[11].reported_loss);
}

TEST_F(TrainText, RepeatBatchShowsTheSameTargetsAgain) {
  ASSERT_EQ(Run({"--steps=40", "--fault=repeat_batch", "--fault_step=10"}).exit_code, 0);
  const auto records = Records();
  for (std::size_t i = 1; i < 40; ++i) {
    const bool repeated = records[i].mask_fingerprint == records[i - 1].mask_fingerprint;
    EXPECT_EQ(repeated, i > 10 && i < 30) << i;
  }
}

TEST_F(TrainText, ABlipIsOneStepAndNoiseStays) {
  const JobResult blip = Run({"--steps=330", "--fault=blip", "--fault_step=300"});
  const double before = blip.MeanLoss(280, 300);
  EXPECT_GT(blip.log[300].loss, before + 0.5);
  EXPECT_NEAR(blip.log[301].loss, before, 0.2);
  const JobResult noise = RunJob({"--steps=360", "--no_telemetry", "--fault=noise", "--fault_step=300"});
  EXPECT_NEAR(noise.MeanLoss(280, 300), before, 1e-6);
  EXPECT_GT(noise.MeanLoss(301, 330), before + 0.12);
  EXPECT_GT(noise.MeanLoss(340, 360), before + 0.12);
  EXPECT_LT(noise.MeanLoss(340, 360), before + 0.5);
}

TEST_F(TrainText, LabelsOfPaddingAreLearntAtOnce) {
  const JobResult job = Run({"--steps=240", "--fault=padding", "--fault_step=200"});
  EXPECT_GT(job.log[200].loss, job.log[199].loss + 5) << "nobody expected it";
  EXPECT_GT(job.log[220].loss, 1);
  EXPECT_LT(job.MeanLoss(230, 240), 0.05);
  EXPECT_NEAR(job.log[201].unmasked / job.log[199].unmasked, 1, 0.1) << "it is not the mask";
}

TEST_F(TrainText, ARankWithABadShardLiesApart) {
  ASSERT_EQ(Run({"--steps=130", "--ranks=2", "--fault=bad_shard", "--fault_step=120", "--fault_rank=1"}).exit_code, 0);
  const auto loss = [](const lg_step_record& record) { return lg_fixed128_to_double(record.nll_sum) / static_cast<double>(record.finite_tokens); };
  const auto first = Records(0), second = Records(1);
  EXPECT_NEAR(loss(first[119]), loss(second[119]), 0.3);
  EXPECT_GT(loss(second[120]), loss(first[120]) + 1);
}

TEST_F(TrainText, ASlowRankHoldsUpAll) {
  ASSERT_EQ(Run({"--steps=14", "--ranks=2", "--fault=slow_rank", "--fault_step=10", "--fault_rank=1"}).exit_code, 0);
  const auto slow = Records(0);  // the other one, which waits
  for (std::size_t i = 11; i < 14; ++i) EXPECT_GE(slow[i].boot_ns - slow[i - 1].boot_ns, 400'000'000) << i;
}

TEST_F(TrainText, AMuteRankStandsStillInItsRingOnly) {
  const JobResult plain = RunJob({"--steps=14", "--ranks=2", "--no_telemetry", kBits});
  const JobResult mute = Run({"--steps=14", "--ranks=2", kBits, "--fault=mute", "--fault_step=10", "--fault_rank=1"});
  EXPECT_EQ(BitsOf(mute), BitsOf(plain));
  EXPECT_EQ(Records(0).size(), 14u);
  EXPECT_EQ(Records(1).size(), 10u);
}

TEST_F(TrainText, AForgottenLossScaleShowsInTheNormAndNotInTheLoss) {
  const JobResult clean = RunJob({"--steps=260", "--batch=16", "--no_telemetry"});
  const JobResult job = RunJob({"--steps=260", "--batch=16", "--no_telemetry", "--fault=unscaled", "--fault_step=200"});
  EXPECT_NEAR(job.log[200].grad_norm, 1024 * clean.log[200].grad_norm, 1);
  for (std::size_t step = 201; step < 260; ++step) EXPECT_GT(job.log[step].grad_norm, 100 * clean.log[step].grad_norm) << step;
  EXPECT_NEAR(job.MeanLoss(220, 260), clean.MeanLoss(220, 260), 0.05) << "clipping and the optimizer take the factor out again";
}

TEST_F(TrainText, AZLossOfTheWrongSignDrivesLogZAwayBeforeTheLossShowsIt) {
  const std::vector<std::string> flags = {"--steps=720", "--batch=16", "--no_telemetry", "--z_loss=1e-3"};
  std::vector<std::string> faulty = flags;
  faulty.insert(faulty.end(), {"--fault=z_loss_sign", "--fault_step=200"});
  const JobResult clean = RunJob(flags), job = RunJob(faulty);
  EXPECT_EQ(job.log[200].mean_log_z, clean.log[200].mean_log_z);
  EXPECT_GT(job.log[710].mean_log_z, job.log[200].mean_log_z + 2);
  EXPECT_LT(clean.log[710].mean_log_z, clean.log[200].mean_log_z);
  double worse = 0;  // in nats per token, without the z-loss
  for (std::size_t step = 680; step < 720; ++step) {
    worse += (job.log[step].loss - job.log[step].z_loss - clean.log[step].loss + clean.log[step].z_loss) / 40;
  }
  EXPECT_NEAR(worse, 0, 0.05);
}

TEST_F(TrainText, AKilledRankEndsTheJobWithItsSignal) {
  const JobResult job = Run({"--steps=40", "--ranks=3", "--batch=258", "--fault=kill", "--fault_step=20", "--fault_rank=1", "--barrier_timeout_s=3600"});
  EXPECT_EQ(job.exit_code, 128 + SIGKILL);
  EXPECT_NE(job.errors.find("gone for good: rank 1"), std::string::npos) << job.errors;
  EXPECT_EQ(Records(1).size(), 20u) << "all it published is still there";
  const auto events = ReadEvents(directory_.path(), 1);
  EXPECT_TRUE(events.empty() || events.back().kind != LG_EVENT_END);
}

TEST_F(TrainText, AFrozenRankIsLeftBehindAfterTheTimeout) {
  const JobResult job = Run({"--steps=40", "--ranks=2", "--fault=freeze", "--fault_step=20", "--barrier_timeout_s=3"});
  EXPECT_NE(job.exit_code, 0);
  EXPECT_NE(job.errors.find("did not arrive within 3 s: rank 1"), std::string::npos) << job.errors;
  EXPECT_EQ(Records(0).size(), 20u);
}

TEST_F(TrainText, AnEvaluationPauseIsADeclaredPhaseAndChangesNoBit) {
  const JobResult clean = RunJob({"--steps=20", "--no_telemetry", kBits});
  const JobResult job = Run({"--steps=20", kBits, "--fault=eval_pause", "--fault_step=10", "--fault_seconds=1"});
  EXPECT_EQ(BitsOf(job), BitsOf(clean));
  EXPECT_NE(job.Line("step     10  held-out loss"), "") << job.output;
  const auto events = ReadEvents(directory_.path(), 0);
  EXPECT_GE(std::count_if(events.begin(), events.end(), [](const auto& e) { return e.kind == LG_EVENT_PHASE_BEGIN && e.phase == LG_PHASE_EVALUATION; }), 1);
  EXPECT_EQ(Records().size(), 20u);
}

TEST_F(TrainText, TwoFaultsComeOneAfterTheOther) {
  const JobResult job = Run({"--steps=40", "--fault=nan_once", "--fault_step=10", "--then_fault=nan", "--then_fault_step=30"});
  for (const LoggedStep& s : job.log) EXPECT_EQ(s.updated, s.step != 10 && s.step < 30) << s.step;
}

TEST_F(TrainText, NamesWhatIsWrongWithTheCommandLineOrTheText) {
  const JobResult flag = RunJob({"--fault=meteor"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_NE(flag.errors.find("--fault takes one of none, spike"), std::string::npos) << flag.errors;
  const JobResult text = RunJob({"--text=/no/such/text"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_NE(text.errors.find("--text=/no/such/text: No such file or directory"), std::string::npos) << text.errors;
  const JobResult empty = RunJob({"--text=/dev/null"});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_NE(empty.errors.find("--text=/dev/null"), std::string::npos) << empty.errors;
  const JobResult directory = RunJob({"--steps=2", "--no_telemetry", "--checkpoint_every=1", "--checkpoint_dir=/no/such/place"});
  EXPECT_EQ(directory.exit_code, 1);
  EXPECT_NE(directory.errors.find("/no/such/place/step-00000000.ckpt"), std::string::npos) << directory.errors;
}

}  // namespace
}  // namespace lossgauge::train_text
