// The thread that says "this process still runs" once a second, by storing CLOCK_BOOTTIME into up to two status lines.
// It takes no signals of the job, holds no lock that a loss call could wait for, and makes no call but for the clock.
#ifndef LOSSGAUGE_KERNELS_HOST_HEARTBEAT_H_
#define LOSSGAUGE_KERNELS_HOST_HEARTBEAT_H_

#include <pthread.h>

#include <cstdint>

namespace lossgauge {

class Heartbeat {
 public:
  Heartbeat() noexcept;
  ~Heartbeat();  // stops
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Beats into both words (release) at once and then every `period_ns`. False, with errno set, if the thread cannot be made.
  bool Start(std::int64_t* first, std::int64_t* second, std::int64_t period_ns = 1000000000) noexcept;
  // Returns when the thread has ended: from then on the words may be unmapped. Harmless when it was never started.
  void Stop() noexcept;

 private:
  static void* Run(void* self) noexcept;
  void Beat() const noexcept;

  pthread_mutex_t mutex_;
  pthread_cond_t wake_;
  pthread_t thread_{};
  bool running_ = false;  // touched by the owner only
  bool stop_ = false;     // guarded by mutex_
  std::int64_t* words_[2] = {nullptr, nullptr};
  std::int64_t period_ns_ = 0;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_HEARTBEAT_H_
