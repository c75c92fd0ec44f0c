// Accepts connections and gives each to a thread, those that have sent a whole request line and headers first: clients who send half of one
// do not stand in the way of a health probe. Threads and waiting connections are bounded; beyond that the kernel's backlog holds them.
#ifndef LOSSGAUGE_SERVER_WEB_CONNECTION_POOL_H_
#define LOSSGAUGE_SERVER_WEB_CONNECTION_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lossgauge::web {

// Thread-safe but for Start and Stop.
class ConnectionPool {
 public:
  // `serve` owns the socket it gets and returns when it is done with it, soon once stopping() is true.
  ConnectionPool(std::size_t max_threads, std::size_t max_waiting, std::function<void(int socket)> serve);
  ~ConnectionPool();  // stops

  // Takes over `listening_socket`.
  void Start(int listening_socket);
  void Stop();

  // Connections that wait for a thread.
  bool others_wait() const { return waiting_count_ > 0; }
  std::size_t waiting() const { return waiting_count_; }
  const std::atomic<bool>& stopping() const { return stopping_; }

 private:
  void Accept();
  void Work();
  void Enqueue(int socket);
  int TakeNext();  // with the lock held

  const std::size_t max_threads_;
  const std::size_t max_waiting_;
  const std::function<void(int)> serve_;
  int listening_socket_ = -1;
  int wake_event_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> waiting_count_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> waiting_;
  std::size_t idle_threads_ = 0;
  std::vector<std::thread> threads_;
  std::thread accept_thread_;
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_CONNECTION_POOL_H_
