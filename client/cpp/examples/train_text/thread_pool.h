// A few threads that run the parts of one loop. Parts are numbered; which thread runs which part never changes a result.
#ifndef LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_THREAD_POOL_H_
#define LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_THREAD_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lossgauge::train_text {

// Used from one thread. Made after the fork into ranks: threads do not survive one.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1, the calling thread included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Calls run(0) ... run(parts - 1), each once, and returns when all are done.
  void Run(std::int64_t parts, const std::function<void(std::int64_t)>& run);

 private:
  void Work();
  // Takes parts of the loop until none is left. Called and returns with the lock held.
  void Drain(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(std::int64_t)>* run_ = nullptr;
  std::int64_t next_ = 0, parts_ = 0, unfinished_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lossgauge::train_text

#endif  // LOSSGAUGE_CLIENT_CPP_EXAMPLES_TRAIN_TEXT_THREAD_POOL_H_
