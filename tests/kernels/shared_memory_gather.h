// An all-gather between processes that share memory by fork. A rank that does not come makes the others give up after `patience`, naming it; they never hang.
#ifndef LOSSGAUGE_TESTS_KERNELS_SHARED_MEMORY_GATHER_H_
#define LOSSGAUGE_TESTS_KERNELS_SHARED_MEMORY_GATHER_H_

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace lossgauge::test {

// Zeroed memory that forked children share.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) std::abort();
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { munmap(data_, bytes_); }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

class SharedMemoryGather {
 public:
  // Made before the fork. `most_bytes` of one contribution.
  SharedMemoryGather(int ranks, std::size_t most_bytes, std::chrono::milliseconds patience)
      : ranks_(ranks), room_((most_bytes + 63) / 64 * 64), patience_(patience), memory_((kLine + 2 * room_) * static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) new (memory_.data() + kLine * static_cast<std::size_t>(rank)) Arrival;
  }

  // `gathered` takes ranks * bytes. "" or what went wrong; then the group is of no use any more.
  std::string Run(int rank, const void* contribution, std::size_t bytes, void* gathered) {
    if (bytes > room_) return "a contribution of " + std::to_string(bytes) + " bytes has no room";
    const std::uint64_t round = ++round_;
    // Two places take turns: a rank writes to one of them only after all have arrived in the round between, and so have read what was there before.
    std::memcpy(Place(rank, round), contribution, bytes);
    ArrivalOf(rank).bytes.store(bytes, std::memory_order_relaxed);
    ArrivalOf(rank).round.store(round, std::memory_order_release);  // publishes the contribution
    const auto deadline = std::chrono::steady_clock::now() + patience_;
    for (int sender = 0; sender < ranks_; ++sender) {
      while (ArrivalOf(sender).round.load(std::memory_order_acquire) < round) {
        if (std::chrono::steady_clock::now() > deadline) return "rank " + std::to_string(sender) + " did not come";
        const timespec nap{0, 50'000};
        nanosleep(&nap, nullptr);
      }
      // The next round's number may already stand there; a test has one size.
      if (ArrivalOf(sender).bytes.load(std::memory_order_relaxed) != bytes) return "rank " + std::to_string(sender) + " has a contribution of another size";
      std::memcpy(static_cast<unsigned char*>(gathered) + static_cast<std::size_t>(sender) * bytes, Place(sender, round), bytes);
    }
    return "";
  }

 private:
  struct Arrival {
    std::atomic<std::uint64_t> round{0};
    std::atomic<std::uint64_t> bytes{0};
  };
  static constexpr std::size_t kLine = 64;

  Arrival& ArrivalOf(int rank) { return *reinterpret_cast<Arrival*>(memory_.data() + kLine * static_cast<std::size_t>(rank)); }
  unsigned char* Place(int rank, std::uint64_t round) {
    return memory_.data() + kLine * static_cast<std::size_t>(ranks_) + (2 * static_cast<std::size_t>(rank) + round % 2) * room_;
  }

  int ranks_;
  std::size_t room_;
  std::chrono::milliseconds patience_;
  SharedMemory memory_;
  std::uint64_t round_ = 0;  // of this process
};

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_KERNELS_SHARED_MEMORY_GATHER_H_
