#include "client/cpp/examples/train_text/thread_pool.h"

namespace lossgauge::train_text {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(std::int64_t parts, const std::function<void(std::int64_t)>& run) {
  if (workers_.empty() || parts <= 1) {
    for (std::int64_t i = 0; i < parts; ++i) run(i);
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  run_ = &run;
  next_ = 0;
  parts_ = unfinished_ = parts;
  begin_.notify_all();
  Drain(lock);
  end_.wait(lock, [this] { return unfinished_ == 0; });
  run_ = nullptr;
}

void ThreadPool::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    begin_.wait(lock, [this] { return stop_ || (run_ != nullptr && next_ < parts_); });
    if (stop_) return;
    Drain(lock);
  }
}

void ThreadPool::Drain(std::unique_lock<std::mutex>& lock) {
  while (next_ < parts_) {
    const std::int64_t part = next_++;
    const auto* run = run_;
    lock.unlock();
    (*run)(part);
    lock.lock();
    if (--unfinished_ == 0) end_.notify_all();
  }
}

}  // namespace lossgauge::train_text
