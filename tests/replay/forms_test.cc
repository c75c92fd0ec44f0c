// Lines as well-known trainers print them: each is understood by its content.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/replay/read_points.h"

namespace lossgauge::replay {
namespace {

struct Form {
  std::string name;
  std::string line;  // %STEP% and %LOSS% stand for values
  std::int64_t spacing = 1;
  bool has_grad_norm = false;
  bool has_steps = true;
};

std::string Replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) text.replace(at, what.size(), by);
  return text;
}

class Forms : public ::testing::TestWithParam<Form> {};

TEST_P(Forms, StepsAndLossesAreRead) {
  const Form& form = GetParam();
  std::string text;
  for (int i = 1; i <= 6; ++i) {
    text += Replaced(Replaced(form.line, "%STEP%", absl::StrFormat("%d", i * form.spacing)), "%LOSS%", absl::StrFormat("%.4f", 9 - 0.25 * i)) + "\n";
  }
  const ReadPoints read = ReadText(text);
  ASSERT_EQ(read.points.size(), 6u) << text;
  for (int i = 1; i <= 6; ++i) {
    const LogPoint& point = read.points[static_cast<std::size_t>(i - 1)];
    EXPECT_EQ(point.step, form.has_steps ? i * form.spacing : i - 1);
    EXPECT_EQ(point.interval_steps, form.has_steps ? form.spacing : 1);
    ASSERT_TRUE(point.loss);
    EXPECT_DOUBLE_EQ(*point.loss, 9 - 0.25 * i);
    EXPECT_EQ(point.grad_norm.has_value(), form.has_grad_norm);
    EXPECT_EQ(point.attempt, 1u);
  }
  EXPECT_EQ(read.report.CountOf(Oddity::kNumbered), form.has_steps ? 0u : 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Trainers, Forms,
    ::testing::Values(
        Form{"torchtitan", "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: %STEP%  \x1b[32mloss: %LOSS%  \x1b[33mgrad_norm:  1.2500  memory: 40.1GiB(42.2%)",
             10, true},
        Form{"litgpt", "Epoch 1 | iter 400 step %STEP% | loss train: %LOSS%, val: n/a | iter time: 120.10 ms (step)"},
        Form{"fairseq", "2026-01-02 03:04:05 | INFO | train_inner | epoch 001:    %STEP% / 5000 loss=%LOSS%, ppl=402.1, wps=8000, num_updates=%STEP%, lr=1.2e-05, gnorm=2.5", 100, true},
        Form{"fairseq_json", "2026-01-02 03:04:05 | INFO | train_inner | {\"epoch\": 1, \"loss\": \"%LOSS%\", \"num_updates\": \"%STEP%\", \"gnorm\": \"2.5\"}", 100, true},
        Form{"maxtext", "completed step: %STEP%, seconds: 1.234, TFLOP/s/device: 200.1, Tokens/s/device: 5012.3, total_weights: 65536, loss: %LOSS%"},
        Form{"composer", "[batch=%STEP%/100]:\n\t Train time/epoch: 0\n\t Train loss/train/total: %LOSS%"},
        Form{"olmo", "2026-01-02 03:04:05.1 node0:0 olmo.train:950 INFO [step=%STEP%/1000]\n    train/CrossEntropyLoss=%LOSS%\n    throughput/total_tokens=41,943,040\n    optim/total_grad_norm=1.5",
             10, true},
        Form{"nemo", "Epoch 0: :   1%|#         | %STEP%/100 [00:10<01:00, v_num=1, reduced_train_loss=%LOSS%, global_step=%STEP%.0, consumed_samples=64.0]"},
        Form{"neox", "  samples/sec: 30.1 | iteration       %STEP%/  320000 | elapsed time per iteration (ms): 33000.1 | learning rate: 6.0E-07 | lm_loss: %LOSS% | loss scale: 65536.0 |"},
        Form{"axolotl", "{'loss': %LOSS%, 'grad_norm': 1.25, 'learning_rate': 2e-05, 'epoch': 0.01}", 1, true, false},
        Form{"torchtune", "Step %STEP% | loss:%LOSS% lr:2e-05 tokens_per_second_per_gpu:1800.1 "},
        Form{"llama2c", "%STEP% | loss %LOSS% | lr 1.0e-04 | 120.10ms | mfu 20.10%", 10},
        Form{"mlx", "Iter %STEP%: Train loss %LOSS%, Learning Rate 1.000e-05, It/sec 0.500, Tokens/sec 200.1, Trained Tokens 4000, Peak mem 10.1 GB", 10},
        Form{"nanotron", "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0|node0]: iteration: %STEP% / 100 | consumed_tokens: 262K | lm_loss: %LOSS% | lr: 0.0001 | grad_norm: 1.1", 1, true},
        Form{"tensorflow", "INFO:tensorflow:loss = %LOSS%, step = %STEP% (20.123 sec)", 100},
        Form{"tensor", "step %STEP%: loss tensor(%LOSS%, device='cuda:0', grad_fn=<NllLossBackward0>)"},
        Form{"minimind", "Epoch:[1/1](%STEP%/5000) loss:%LOSS% lr:0.000500000 epoch_Time:120.0min:", 1, false, false}),
    [](const auto& form) { return form.param.name; });

}  // namespace
}  // namespace lossgauge::replay
