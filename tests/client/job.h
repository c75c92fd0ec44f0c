// Runs train_text as a process and reads what it left: its output, its own log, its ring.
#ifndef LOSSGAUGE_TESTS_CLIENT_JOB_H_
#define LOSSGAUGE_TESTS_CLIENT_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::train_text {

// One line of --log_file.
struct LoggedStep {
  std::int64_t step = 0;
  double loss = 0, reported_loss = 0, z_loss = 0, mean_log_z = 0, unmasked = 0, grad_norm = 0, learning_rate = 0;
  bool updated = false;
};

struct JobResult {
  int exit_code = 0;  // 128 + signal if it was killed
  std::string output, errors;
  std::vector<LoggedStep> log;
  std::string Line(const std::string& beginning) const;  // the first output line that begins so, or ""
  double MeanLoss(std::int64_t first, std::int64_t last) const;  // of the log's steps in [first, last)
};

// Waits for the end. --log_every=0 and --log_file are added. `once_training` is called with the process when it has logged a step.
JobResult RunJob(std::vector<std::string> flags, const std::function<void(pid_t)>& once_training = nullptr);

// All records that the ring of `rank` in `directory` still holds.
std::vector<lg_step_record> ReadStepRecords(const std::string& directory, std::uint32_t rank);
std::vector<lg_event_record> ReadEvents(const std::string& directory, std::uint32_t rank);

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_TESTS_CLIENT_JOB_H_
