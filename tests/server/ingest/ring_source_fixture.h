// A ring source over a directory of its own, with its clock and what it handed over.
#ifndef LOSSGAUGE_TESTS_SERVER_INGEST_RING_SOURCE_FIXTURE_H_
#define LOSSGAUGE_TESTS_SERVER_INGEST_RING_SOURCE_FIXTURE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "server/ingest/ring_source.h"
#include "spdlog/spdlog.h"
#include "tests/scratch_directory.h"
#include "tests/server/fake_producer.h"
#include "tests/server/ingest/recording_sink.h"
#include "tests/server/manual_clock.h"

namespace lossgauge::ingest {

inline constexpr std::int64_t kSecond = testing::ManualClock::kSecond;

class RingSourceTest : public ::testing::Test {
 protected:
  RingSourceTest() { spdlog::set_level(spdlog::level::off); }

  testing::FakeProducerOptions Options(std::uint32_t rank = 0) {
    testing::FakeProducerOptions options;
    options.directory = directory_.path();
    options.rank = rank;
    options.world_size = 4;
    return options;
  }
  RingSource& source() {
    if (!source_) {
      options_.directories = {directory_.path()};
      source_ = std::make_unique<RingSource>(options_, &clock_);
    }
    return *source_;
  }
  // One look after `seconds`, repeated for as long as a budget ends it.
  void Poll(double seconds = 0.2) {
    clock_.Advance(static_cast<std::int64_t>(seconds * 1e9));
    while (source().Poll(sink_, sink_, clock_.NowNs()).more) {
    }
  }
  state::ProducerState LastState() const { return sink_.liveness.empty() ? state::ProducerState::kEnded : sink_.liveness.back().producer_state; }
  std::uint64_t Errors(const std::string& cause) {
    const auto& errors = source().stats().errors;
    const auto it = errors.find(cause);
    return it == errors.end() ? 0 : it->second;
  }
  // A word of the slot where publication n belongs.
  static void StoreWord(const testing::FakeProducer& producer, std::uint64_t n, std::uint64_t word, std::uint64_t value) {
    const int fd = open(producer.steps_path().c_str(), O_RDWR | O_CLOEXEC);
    const std::uint64_t at = LG_RING_HEADER_BYTES + (n - 1) % LG_STEP_SLOT_COUNT * LG_STEP_SLOT_BYTES + 8 * word;
    EXPECT_EQ(pwrite(fd, &value, 8, static_cast<off_t>(at)), 8);
    close(fd);
  }
  void WriteFile(const std::string& name, const std::string& bytes) { std::ofstream(directory_.path() + "/" + name) << bytes; }

  ScratchDirectory directory_;
  testing::ManualClock clock_;
  RingSourceOptions options_;
  std::unique_ptr<RingSource> source_;
  testing::RecordingSink sink_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_TESTS_SERVER_INGEST_RING_SOURCE_FIXTURE_H_
