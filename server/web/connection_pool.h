// Accepts connections and gives each to a thread, those that have sent a whole request line and headers first: clients who send half of one
// do not stand in the way of a health probe. Threads and waiting connections are bounded; beyond that the kernel's backlog holds them.
#ifndef LOSSGAUGE_SERVER_WEB_CONNECTION_POOL_H_
#define LOSSGAUGE_SERVER_WEB_CONNECTION_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lossgauge::web {

// Thread-safe but for Start and Stop.
class ConnectionPool {
 public:
  // `serve` owns the socket it gets and returns when it is done with it, soon once stopping() is true.
  ConnectionPool(std::size_t max_threads, std::size_t max_waiting, std::function<void(int socket)> serve);
  // Before Start. What is given for a connection is held until it is over; null: it is closed at once.
  void set_admit(std::function<std::shared_ptr<void>(int socket)> admit) { admit_ = std::move(admit); }
  // Before Start. Encrypted connections do not show whether a whole head has come.
  void set_encrypted(bool encrypted) { encrypted_ = encrypted; }
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
  struct Connection {
    int socket = -1;
    std::shared_ptr<void> slot;
  };
  void Enqueue(Connection connection);
  Connection TakeNext();  // with the lock held

  const std::size_t max_threads_;
  const std::size_t max_waiting_;
  const std::function<void(int)> serve_;
  std::function<std::shared_ptr<void>(int)> admit_;
  bool encrypted_ = false;
  int listening_socket_ = -1;
  int wake_event_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> waiting_count_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Connection> waiting_;
  std::size_t idle_threads_ = 0;
  std::vector<std::thread> threads_;
  std::thread accept_thread_;
};

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_CONNECTION_POOL_H_
