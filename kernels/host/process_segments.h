// The segments that this process holds locks on. Needed because fcntl record locks belong to the process: they do not exclude
// its own threads, F_GETLK does not show them, and closing *any* descriptor of a locked file drops the lock. Whoever opens lock
// files of others must therefore hold this and leave our own alone.
//
// The lock is taken by open and close only, never on the step path. A forked child that inherits it locked takes it over.
#ifndef LOSSGAUGE_KERNELS_HOST_PROCESS_SEGMENTS_H_
#define LOSSGAUGE_KERNELS_HOST_PROCESS_SEGMENTS_H_

#include <string>
#include <string_view>

namespace lossgauge {

class ProcessSegments {
 public:
  // Waits up to `limit_ms` for other threads that open or close a gauge.
  explicit ProcessSegments(int limit_ms) noexcept;
  ~ProcessSegments();
  ProcessSegments(const ProcessSegments&) = delete;
  ProcessSegments& operator=(const ProcessSegments&) = delete;

  bool locked() const noexcept { return locked_; }

  // Requires locked().
  bool Holds(std::string_view key) const noexcept;
  void Insert(const std::string& key);
  void Erase(std::string_view key) noexcept;

 private:
  bool locked_ = false;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_PROCESS_SEGMENTS_H_
