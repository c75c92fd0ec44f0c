// Survives files that shrink under their mapping.
//
// A read-only mapping of somebody else's file raises SIGBUS when that file is truncated after the size was checked; no check can close that
// window. So mappings are registered here, and a process-wide handler puts a page of zeros where a page of the file has gone, marks the
// mapping as broken and lets the reader go on: zeros validate as nothing, and the next look at `broken()` ends the reading. Faults anywhere
// else go to the handler that was there before.
//
// Handler and registration share nothing but atomics. Any thread may read a mapping; registration is for the drain thread.
#ifndef LOSSGAUGE_SERVER_INGEST_BUS_GUARD_H_
#define LOSSGAUGE_SERVER_INGEST_BUS_GUARD_H_

#include <cstddef>
#include <cstdint>

namespace lossgauge::ingest {

class GuardedMapping {
 public:
  GuardedMapping() = default;
  ~GuardedMapping() { Reset(); }
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;

  // Maps the first `bytes` bytes of `fd` read-only and registers them. False with errno set; ENOSPC when too many are registered.
  bool Map(int fd, std::size_t bytes);
  void Reset();
  const void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // A page of the file was gone when it was read.
  bool broken() const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t entry_ = 0;
};

// Pages replaced since the process began.
std::uint64_t BusFaultsCaught();

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_BUS_GUARD_H_
