// A few threads for what may wait for a disk, so that gRPC's own threads never do. The queue is bounded: a full one is refused, not waited for.
#ifndef LOSSGAUGE_SERVER_RPC_BOUNDED_EXECUTOR_H_
#define LOSSGAUGE_SERVER_RPC_BOUNDED_EXECUTOR_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lossgauge::rpc {

// Thread-safe.
class BoundedExecutor {
 public:
  BoundedExecutor(std::size_t threads, std::size_t capacity);
  ~BoundedExecutor();  // runs what is queued, then joins

  // False if the queue is full or the executor is stopping; `task` is then dropped.
  bool TryPost(std::function<void()> task);

 private:
  void Run();

  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_BOUNDED_EXECUTOR_H_
