#include "client/cpp/examples/train_text/all_reduce.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

namespace lossgauge::train_text {
namespace {

using Clock = std::chrono::steady_clock;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock inside an atomic would not be shared between processes");

enum Broken : std::uint32_t { kWhole = 0, kTimedOut = 1, kGone = 2 };

void FutexWait(std::atomic<std::uint32_t>* word, std::uint32_t seen, std::chrono::nanoseconds at_most) {
  const timespec timeout{static_cast<time_t>(at_most.count() / 1'000'000'000), static_cast<long>(at_most.count() % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void FutexWakeAll(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct RankGroup::Shared {
  std::atomic<std::uint32_t> generation{0};  // barriers completed; the word that is waited on
  std::atomic<std::uint32_t> arrived{0};     // at the barrier in progress
  std::atomic<std::uint32_t> broken{kWhole};
  std::atomic<std::uint32_t> arrivals[kMaxRanks] = {};  // barriers that each rank has entered
  std::atomic<std::uint32_t> gone[kMaxRanks] = {};
  alignas(64) std::uint64_t scalars[kMaxRanks][kMaxScalars] = {};
};

std::unique_ptr<RankGroup> RankGroup::Create(int ranks, std::size_t max_floats, double timeout_seconds, std::string* error) {
  max_floats = (max_floats + 15) / 16 * 16;
  const std::size_t floats = ranks == 1 ? 0 : max_floats * static_cast<std::size_t>(ranks + 1);
  const std::size_t bytes = sizeof(Shared) + floats * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    *error = "cannot get " + std::to_string(bytes) + " bytes of shared memory for " + std::to_string(ranks) + " ranks: " + std::strerror(errno);
    return nullptr;
  }
  return std::unique_ptr<RankGroup>(new RankGroup(new (memory) Shared, bytes, ranks, max_floats, timeout_seconds));
}

RankGroup::RankGroup(Shared* shared, std::size_t bytes, int ranks, std::size_t max_floats, double timeout_seconds)
    : shared_(shared), bytes_(bytes), ranks_(ranks), max_floats_(max_floats), timeout_seconds_(timeout_seconds) {}

RankGroup::~RankGroup() { munmap(shared_, bytes_); }

float* RankGroup::Slot(int rank) const { return reinterpret_cast<float*>(shared_ + 1) + static_cast<std::size_t>(rank) * max_floats_; }

std::string RankGroup::WhyBroken() const {
  std::string gone, late;
  const std::uint32_t entered = shared_->generation.load() + 1;
  for (int r = 0; r < ranks_; ++r) {
    if (shared_->gone[r].load() != 0) {
      gone += " " + std::to_string(r);
    } else if (shared_->arrivals[r].load() != entered) {
      late += " " + std::to_string(r);
    }
  }
  if (!gone.empty()) return "all-reduce: gone for good: rank" + gone;
  return "all-reduce: did not arrive within " + std::to_string(static_cast<std::int64_t>(timeout_seconds_)) + " s: rank" + late;
}

std::string RankGroup::Barrier(int rank) {
  if (ranks_ == 1) return "";
  if (shared_->broken.load() != kWhole) return WhyBroken();
  const std::uint32_t before = shared_->generation.load();
  shared_->arrivals[rank].store(before + 1);
  if (shared_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
    shared_->arrived.store(0);
    shared_->generation.store(before + 1);  // publishes everything that all ranks wrote before they arrived
    FutexWakeAll(&shared_->generation);
    return "";
  }
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds_));
  for (;;) {
    if (shared_->generation.load() != before) return "";
    if (shared_->broken.load() != kWhole) return WhyBroken();
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) {
      std::uint32_t whole = kWhole;
      shared_->broken.compare_exchange_strong(whole, kTimedOut);
      FutexWakeAll(&shared_->generation);
      return WhyBroken();
    }
    // In slices: a rank that breaks the group between our look and our wait wakes nobody.
    FutexWait(&shared_->generation, before, std::min<std::chrono::nanoseconds>(left, std::chrono::milliseconds(200)));
  }
}

std::string RankGroup::Sum(int rank, std::span<float> values) {
  if (ranks_ == 1) return "";
  if (values.size() > max_floats_) return "all-reduce of " + std::to_string(values.size()) + " floats, made for " + std::to_string(max_floats_);
  std::memcpy(Slot(rank), values.data(), values.size_bytes());
  if (std::string error = Barrier(rank); !error.empty()) return error;
  // Each rank sums its share of the elements, in rank order.
  const std::size_t first = values.size() * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks_);
  const std::size_t last = values.size() * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(ranks_);
  float* sum = Slot(ranks_);
  std::memcpy(sum + first, Slot(0) + first, (last - first) * sizeof(float));
  for (int r = 1; r < ranks_; ++r) {
    const float* slot = Slot(r);
    for (std::size_t i = first; i < last; ++i) sum[i] += slot[i];
  }
  if (std::string error = Barrier(rank); !error.empty()) return error;
  // No third barrier: the next sum is written after the next first barrier, which needs every rank to be past this copy.
  std::memcpy(values.data(), sum, values.size_bytes());
  return "";
}

template <typename T>
std::string RankGroup::SumScalars(int rank, std::span<T> values) {
  static_assert(sizeof(T) == sizeof(std::uint64_t));
  if (ranks_ == 1) return "";
  if (values.size() > kMaxScalars) return "all-reduce of " + std::to_string(values.size()) + " scalars, made for " + std::to_string(kMaxScalars);
  std::memcpy(shared_->scalars[rank], values.data(), values.size_bytes());
  if (std::string error = Barrier(rank); !error.empty()) return error;
  for (std::size_t i = 0; i < values.size(); ++i) {
    T sum{};
    for (int r = 0; r < ranks_; ++r) {
      T term;
      std::memcpy(&term, &shared_->scalars[r][i], sizeof(term));
      sum += term;
    }
    values[i] = sum;
  }
  return Barrier(rank);  // so that nobody writes the next scalars while these are read
}

std::string RankGroup::Sum(int rank, std::span<double> values) { return SumScalars(rank, values); }
std::string RankGroup::Sum(int rank, std::span<std::uint64_t> values) { return SumScalars(rank, values); }

void RankGroup::MarkGone(int rank) {
  shared_->gone[rank].store(1);
  std::uint32_t whole = kWhole;
  shared_->broken.compare_exchange_strong(whole, kGone);
  FutexWakeAll(&shared_->generation);
}

}  // namespace lossgauge::train_text
