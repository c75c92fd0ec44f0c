#include "kernels/host/heartbeat.h"

#include <errno.h>
#include <signal.h>

#include <cstddef>

#include "kernels/host/clocks.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge {
namespace {

[[maybe_unused]] constexpr std::size_t kStackBytes = 256 * 1024;  // address space, of which a page or two are touched

}  // namespace

Heartbeat::Heartbeat() noexcept {
  ::pthread_mutex_init(&mutex_, nullptr);
  pthread_condattr_t attributes;
  ::pthread_condattr_init(&attributes);
  ::pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);  // a jump of the wall clock must not stop the beat
  ::pthread_cond_init(&wake_, &attributes);
  ::pthread_condattr_destroy(&attributes);
}

Heartbeat::~Heartbeat() {
  Stop();
  ::pthread_cond_destroy(&wake_);
  ::pthread_mutex_destroy(&mutex_);
}

bool Heartbeat::Start(std::int64_t* first, std::int64_t* second, std::int64_t period_ns) noexcept {
  words_[0] = first;
  words_[1] = second;
  period_ns_ = period_ns;
  Beat();
  // A thread inherits the mask of its maker: block everything for that moment, so that the job's signals never land in it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
#endif
  int error = ::pthread_create(&thread_, &attributes, &Heartbeat::Run, this);
  // Thread-local storage of the job's libraries lies in the stack too, and may need more than that.
  if (error == EINVAL) error = ::pthread_create(&thread_, nullptr, &Heartbeat::Run, this);
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  running_ = error == 0;
  if (!running_) errno = error;
  return running_;
}

void Heartbeat::Stop() noexcept {
  if (!running_) return;
  ::pthread_mutex_lock(&mutex_);
  stop_ = true;
  ::pthread_cond_signal(&wake_);
  ::pthread_mutex_unlock(&mutex_);
  ::pthread_join(thread_, nullptr);
  running_ = false;
}

void Heartbeat::Beat() const noexcept {
  const std::int64_t now = BootNs();
  for (std::int64_t* word : words_) {
    if (word != nullptr) ring::StoreRelease(word, now);
  }
}

void* Heartbeat::Run(void* self) noexcept {
  auto* heartbeat = static_cast<Heartbeat*>(self);
  ::pthread_setname_np(::pthread_self(), "lossgauge-beat");
  ::pthread_mutex_lock(&heartbeat->mutex_);
  while (!heartbeat->stop_) {
    heartbeat->Beat();
    const std::int64_t until = ClockNs(CLOCK_MONOTONIC) + heartbeat->period_ns_;
    const timespec deadline{static_cast<time_t>(until / 1000000000), static_cast<long>(until % 1000000000)};
    ::pthread_cond_timedwait(&heartbeat->wake_, &heartbeat->mutex_, &deadline);
  }
  ::pthread_mutex_unlock(&heartbeat->mutex_);
  return nullptr;
}

}  // namespace lossgauge
