#include "tests/client/job.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "proto/lossgauge/ring/ring_reader.h"
#include "tests/scratch_directory.h"

namespace lossgauge::train_text {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<LoggedStep> ReadLog(const std::string& path) {
  std::vector<LoggedStep> log;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);  // names
  while (std::getline(in, line)) {
    // Not by operator>>: it does not read "nan".
    LoggedStep s;
    const char* at = line.c_str();
    char* end = nullptr;
    s.step = std::strtoll(at, &end, 10);
    for (double* value : {&s.loss, &s.reported_loss, &s.z_loss, &s.mean_log_z, &s.unmasked, &s.grad_norm, &s.learning_rate}) *value = std::strtod(end, &end);
    s.updated = std::strtol(end, &end, 10) == 1;
    log.push_back(s);
  }
  return log;
}

template <class Record>
std::vector<Record> ReadRecords(const std::string& directory, std::uint32_t rank, const char* extension) {
  std::vector<Record> records;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() != extension) continue;
    const std::string bytes = ReadFile(entry.path().string());
    std::vector<std::uint64_t> aligned(bytes.size() / 8);
    std::memcpy(aligned.data(), bytes.data(), aligned.size() * 8);
    lg_ring_identity identity;
    EXPECT_EQ(ring::ReadHeader(aligned.data(), bytes.size(), &identity), ring::HeaderState::kValid) << entry.path();
    if (identity.layout.rank != rank) continue;
    ring::RingReader<Record> reader(aligned.data(), identity);
    Record record;
    for (;;) {
      const ring::ReadResult result = reader.Next(&record);
      if (result.fate == ring::ReadFate::kRecord) {
        records.push_back(record);
      } else if (result.fate != ring::ReadFate::kLapped) {
        EXPECT_EQ(result.fate, ring::ReadFate::kEmpty);
        break;
      }
    }
  }
  return records;
}

}  // namespace

std::string JobResult::Line(const std::string& beginning) const {
  std::istringstream in(output);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(beginning, 0) == 0) return line;
  }
  return "";
}

double JobResult::MeanLoss(std::int64_t first, std::int64_t last) const {
  double sum = 0;
  int count = 0;
  for (const LoggedStep& s : log) {
    if (s.step < first || s.step >= last) continue;
    sum += s.loss;
    ++count;
  }
  return sum / count;
}

JobResult RunJob(std::vector<std::string> flags, const std::function<void(pid_t)>& once_training) {
  const ScratchDirectory scratch;
  const std::string out = scratch.path() + "/out", err = scratch.path() + "/err", log = scratch.path() + "/log";
  flags.insert(flags.begin(), {TRAIN_TEXT_BINARY, "--log_every=0", "--log_file=" + log});
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    if (std::freopen(out.c_str(), "w", stdout) == nullptr || std::freopen(err.c_str(), "w", stderr) == nullptr) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  if (once_training) {
    while (ReadLog(log).empty() && waitpid(pid, &status, WNOHANG) == 0) usleep(10'000);
    once_training(pid);
  }
  waitpid(pid, &status, 0);
  JobResult result;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.output = ReadFile(out);
  result.errors = ReadFile(err);
  result.log = ReadLog(log);
  return result;
}

std::vector<lg_step_record> ReadStepRecords(const std::string& directory, std::uint32_t rank) {
  return ReadRecords<lg_step_record>(directory, rank, ".steps");
}

std::vector<lg_event_record> ReadEvents(const std::string& directory, std::uint32_t rank) {
  return ReadRecords<lg_event_record>(directory, rank, ".events");
}

}  // namespace lossgauge::train_text
