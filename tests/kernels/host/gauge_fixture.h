// A gauge in a scratch directory and what a reader finds in its rings, for tests that read as sentences.
#ifndef LOSSGAUGE_TESTS_KERNELS_HOST_GAUGE_FIXTURE_H_
#define LOSSGAUGE_TESTS_KERNELS_HOST_GAUGE_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/include/lossgauge/lossgauge.h"
#include "proto/lossgauge/ring/ring_reader.h"
#include "tests/scratch_directory.h"

namespace lossgauge {

inline lg_gauge_options Options(const std::string& directory, const char* run = "run", const char* attempt = "1") {
  lg_gauge_options options;
  lg_gauge_options_init(&options);
  options.run = run;
  options.attempt = attempt;
  options.ring_dir = directory.c_str();
  options.world_size = 1;
  options.rank = 0;
  options.vocab_size = 1000;
  return options;
}

inline lg_gauge_state State(const lg_gauge* gauge) {
  lg_gauge_state state{};
  state.struct_size = sizeof state;
  EXPECT_EQ(lg_gauge_get_state(gauge, &state), LG_OK);
  return state;
}

inline lg_observation Observation(double nll_sum, std::int64_t tokens, std::int64_t unmasked_tokens) {
  lg_observation observation;
  lg_observation_init(&observation);
  observation.nll_sum = nll_sum;
  observation.tokens = tokens;
  observation.unmasked_tokens = unmasked_tokens;
  return observation;
}

// A ring file as a reader finds it at rest.
class RingFile {
 public:
  explicit RingFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    words_.resize(bytes.size() / 8);
    std::memcpy(words_.data(), bytes.data(), words_.size() * 8);
    state_ = ring::ReadHeader(words_.data(), words_.size() * 8, &identity_);
  }
  ring::HeaderState state() const { return state_; }
  const lg_ring_identity& identity() const { return identity_; }
  std::uint64_t cursor() const { return reinterpret_cast<const lg_ring_header*>(words_.data())->cursor; }
  const lg_ring_status& status() const { return reinterpret_cast<const lg_ring_header*>(words_.data())->status; }

  template <class Record>
  std::vector<Record> Records() const {
    std::vector<Record> records;
    if (state_ != ring::HeaderState::kValid) return records;
    ring::RingReader<Record> reader(words_.data(), identity_);
    Record record;
    for (;;) {
      const ring::ReadResult result = reader.Next(&record);
      if (result.fate == ring::ReadFate::kRecord) {
        records.push_back(record);
      } else if (result.fate != ring::ReadFate::kLapped) {
        return records;
      }
    }
  }

 private:
  std::vector<std::uint64_t> words_;
  lg_ring_identity identity_{};
  ring::HeaderState state_;
};

inline std::string EventsPath(const std::string& steps_path) {
  return steps_path.substr(0, steps_path.size() - std::strlen(".steps")) + ".events";
}

// Names of the directory's ring files: ".steps" ones, so one per segment.
inline std::vector<std::string> StepRings(const std::string& directory) {
  std::vector<std::string> rings;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".steps") rings.push_back(entry.path().string());
  }
  return rings;
}

// Runs `body` in a forked child and gives back what it returns (0 to 100); 101 and up if a signal killed it.
inline int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 101 + WTERMSIG(status);
}

constexpr uid_t kOrdinaryUser = 65534;

// The same as a user without privileges, where this process has any.
inline int AsOrdinaryUser(const std::function<int()>& body) {
  return InChild([&body] {
    if (::geteuid() == 0 && (::setgid(kOrdinaryUser) != 0 || ::setuid(kOrdinaryUser) != 0)) return 100;
    return body();
  });
}

}  // namespace lossgauge

#endif  // LOSSGAUGE_TESTS_KERNELS_HOST_GAUGE_FIXTURE_H_
