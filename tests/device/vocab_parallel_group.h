// Ranks of a tensor-parallel group, one GPU and one thread each, with a communicator of NCCL.
#ifndef LOSSGAUGE_TESTS_DEVICE_VOCAB_PARALLEL_GROUP_H_
#define LOSSGAUGE_TESTS_DEVICE_VOCAB_PARALLEL_GROUP_H_

#include <cuda_runtime.h>
#include <lossgauge/lossgauge.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace lossgauge::test {

inline int Devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

// Ranks wait for each other on the host.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const int round = round_;
    if (++here_ == ranks_) {
      here_ = 0;
      ++round_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int ranks_;
  int here_ = 0, round_ = 0;
  std::mutex mutex_;
  std::condition_variable all_;
};

// work(rank) in a thread for each rank, its device current.
template <class Work>
void OnEachRank(int ranks, const Work& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&work, rank] {
      if (cudaSetDevice(rank) == cudaSuccess) work(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One for each rank; null where NCCL cannot be had, which lg_last_error of the thread tells.
inline std::vector<void*> OpenCommunicators(int ranks) {
  std::vector<void*> communicators(static_cast<std::size_t>(ranks), nullptr);
  std::array<unsigned char, 128> id{};
  if (lg_communicator_unique_id(id.data()) != LG_OK) return communicators;
  OnEachRank(ranks, [&](int rank) {
    void* made = nullptr;
    if (lg_communicator_open(id.data(), ranks, rank, &made) == LG_OK) communicators[static_cast<std::size_t>(rank)] = made;
  });
  return communicators;
}

}  // namespace lossgauge::test

#endif  // LOSSGAUGE_TESTS_DEVICE_VOCAB_PARALLEL_GROUP_H_
