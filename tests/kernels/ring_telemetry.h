// A gauge in a directory of its own, and a reader of its ring.
#ifndef LOSSGAUGE_TESTS_KERNELS_RING_TELEMETRY_H_
#define LOSSGAUGE_TESTS_KERNELS_RING_TELEMETRY_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "proto/lossgauge/ring/ring_reader.h"
#include "tests/kernels/backend.h"

namespace lossgauge::test {

// What a reader waits for after a publish; a device's tests set it.
inline std::function<void()>& WaitForRecord() {
  static std::function<void()> wait = [] {};
  return wait;
}

class RingTelemetry : public Telemetry {
 public:
  explicit RingTelemetry(const TelemetryOptions& wanted, std::function<void()> finish = WaitForRecord()) : finish_(std::move(finish)) {
    static std::atomic<int> count{0};
    const std::string name = std::to_string(getpid()) + "-" + std::to_string(count++);
    directory_ = std::filesystem::temp_directory_path() / ("lossgauge-kernels-test-" + name);
    const std::string run = "kernels-test-" + name;
    lg_gauge_options options;
    lg_gauge_options_init(&options);
    options.run = run.c_str();
    options.attempt = "1";
    options.rank = wanted.rank;
    options.world_size = wanted.ranks;
    options.tp = {wanted.ranks, wanted.rank};
    options.vocab_size = wanted.vocab_size;
    options.shard_offset = wanted.shard_offset;
    options.shard_columns = wanted.shard_columns;
    const std::string directory = directory_.string();
    options.ring_dir = directory.c_str();
    options.token_bytes = wanted.token_bytes.empty() ? nullptr : wanted.token_bytes.data();
    EXPECT_EQ(lg_gauge_open(&options, &gauge_), LG_OK) << lg_last_error();
    lg_gauge_state state{};
    state.struct_size = sizeof state;
    EXPECT_EQ(lg_gauge_get_state(gauge_, &state), LG_OK) << lg_last_error();
    const int file = open(state.steps_path, O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) {
      ADD_FAILURE() << "no ring at " << state.steps_path;
      return;
    }
    bytes_ = static_cast<std::size_t>(status.st_size);
    mapped_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    lg_ring_identity identity;
    EXPECT_EQ(ring::ReadHeader(mapped_, bytes_, &identity), ring::HeaderState::kValid);
    reader_ = std::make_unique<ring::RingReader<lg_step_record>>(mapped_, identity);
  }
  ~RingTelemetry() override {
    lg_gauge_close(gauge_, "test over");
    if (mapped_ != nullptr) munmap(mapped_, bytes_);
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  lg_gauge* gauge() override { return gauge_; }
  lg_step_record Publish() override {
    lg_step_record main{};
    EXPECT_EQ(lg_gauge_publish(gauge_, nullptr), LG_OK) << lg_last_error();
    finish_();
    if (reader_ == nullptr) return main;
    lg_step_record record;
    bool found = false;
    for (;;) {
      const ring::ReadResult result = reader_->Next(&record);
      if (result.fate == ring::ReadFate::kEmpty) break;
      if (result.fate != ring::ReadFate::kRecord) {
        ADD_FAILURE() << "the ring is not readable";
        break;
      }
      if (record.block == 0) main = record, found = true;
    }
    EXPECT_TRUE(found) << "publish wrote no record of block 0";
    return main;
  }

 private:
  std::function<void()> finish_;
  std::filesystem::path directory_;
  lg_gauge* gauge_ = nullptr;
  void* mapped_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<ring::RingReader<lg_step_record>> reader_;
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_RING_TELEMETRY_H_
