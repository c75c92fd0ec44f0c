// A log read into memory, and points as lines of text.
#ifndef LOSSGAUGE_TESTS_REPLAY_READ_POINTS_H_
#define LOSSGAUGE_TESTS_REPLAY_READ_POINTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/replay/read_log.h"

namespace lossgauge::replay {

struct ReadPoints final : LogSink {
  void OnPoint(const LogPoint& point) override { points.push_back(point); }
  void OnEvaluation(const LogEvaluation& evaluation) override { evaluations.push_back(evaluation); }
  void OnCheckpoint(const LogCheckpoint& checkpoint) override { checkpoints.push_back(checkpoint); }

  std::vector<LogPoint> points;
  std::vector<LogEvaluation> evaluations;
  std::vector<LogCheckpoint> checkpoints;
  LogReport report;
};

// `status` is OK or what ReadLog said.
inline ReadPoints ReadText(std::string_view text, absl::Status* status = nullptr) {
  ReadPoints read;
  const auto source = MakeMemorySource(text);
  auto report = ReadLog(source.get(), &read);
  if (report.ok()) read.report = *report;
  if (status != nullptr) *status = report.status();
  return read;
}

inline std::vector<std::int64_t> Steps(const ReadPoints& read) {
  std::vector<std::int64_t> steps;
  for (const LogPoint& point : read.points) steps.push_back(point.step);
  return steps;
}

// A log of one line a step.
inline std::string Lines(int first, int last) {
  std::string text;
  for (int i = first; i <= last; ++i) absl::StrAppendFormat(&text, "step:%d loss:%.2f\n", i, 5 - 0.01 * i);
  return text;
}

inline std::string Show(const LogPoint& p) {
  std::string text = absl::StrFormat("line %u  attempt %u%s  step %d over %d", p.line, p.attempt, p.attempt_name.empty() ? "" : " \"" + p.attempt_name + "\"",
                                     p.step, p.interval_steps);
  const auto add = [&](const char* name, const auto& value) {
    if (value) absl::StrAppendFormat(&text, "  %s %g", name, static_cast<double>(*value));
  };
  add("loss", p.loss);
  add("grad_norm", p.grad_norm);
  add("lr", p.learning_rate);
  add("seconds", p.step_seconds);
  add("tokens", p.tokens);
  add("unmasked", p.unmasked_tokens);
  add("finite", p.finite_tokens);
  add("nonfinite", p.nonfinite_rows);
  add("skipped", p.skipped_iterations);
  add("nan", p.nan_iterations);
  if (p.target_fingerprint) absl::StrAppendFormat(&text, "  target_fingerprint %u", *p.target_fingerprint);
  return text;
}

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_TESTS_REPLAY_READ_POINTS_H_
