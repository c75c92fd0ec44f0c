// A whole fake job as one process, for trials by hand and for footprint measurements:
//   fake_job --ring_dir=DIR [--run=fake] [--attempt=1] [--ranks=8] [--first_rank=0] [--world_size=RANKS] [--steps=1000] [--first_step=0] [--rate=100]
//            [--close=1]
// rate: steps a second; 0 = as fast as it goes. first_rank and world_size: one node's part of a job.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/fake_producer.h"

namespace {

std::string Option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]).rfind(prefix, 0) == 0) return std::string(argv[i]).substr(prefix.size());
  }
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  using lossgauge::testing::FakeProducer;
  using Clock = std::chrono::steady_clock;
  const auto number = [&](const char* name, const char* otherwise) { return std::atoll(Option(argc, argv, name, otherwise).c_str()); };
  const std::string directory = Option(argc, argv, "ring_dir", "");
  if (directory.empty()) {
    std::fprintf(stderr, "fake_job: --ring_dir=DIR is needed\n");
    return 2;
  }
  const auto ranks = static_cast<std::uint32_t>(number("ranks", "8"));
  const long long steps = number("steps", "1000");
  const double rate = static_cast<double>(number("rate", "100"));
  const long long first = number("first_step", "0");
  std::vector<std::unique_ptr<FakeProducer>> producers;
  const auto first_rank = static_cast<std::uint32_t>(number("first_rank", "0"));
  const auto world_size = static_cast<std::uint32_t>(number("world_size", std::to_string(ranks).c_str()));
  for (std::uint32_t rank = first_rank; rank < first_rank + ranks; ++rank) {
    lossgauge::testing::FakeProducerOptions options;
    options.directory = directory;
    options.run = Option(argc, argv, "run", "fake");
    options.attempt = Option(argc, argv, "attempt", "1");
    options.attempt_start_wall_ns = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    options.rank = rank;
    options.world_size = world_size;
    producers.push_back(std::make_unique<FakeProducer>(options));
  }
  auto next = Clock::now();
  auto next_beat = next;
  for (long long step = first; step < first + steps; ++step) {
    for (auto& producer : producers) producer->PublishStep(step);
    if (rate > 0) {
      next += std::chrono::nanoseconds(static_cast<long long>(1e9 / rate));
      std::this_thread::sleep_until(next);
    }
    if (Clock::now() >= next_beat) {
      for (auto& producer : producers) producer->Beat();
      next_beat = Clock::now() + std::chrono::seconds(1);
    }
  }
  if (number("close", "1") != 0) {
    for (auto& producer : producers) producer->Close();
  }
  return 0;
}
