// A producer's segment: lock file, step ring and event ring, made at open and held until close. ring_abi.h says what they look
// like.
#ifndef LOSSGAUGE_KERNELS_HOST_SEGMENT_H_
#define LOSSGAUGE_KERNELS_HOST_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "proto/lossgauge/ring/ring_abi.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge {

struct SegmentRequest {
  const char* directory = nullptr;  // NULL or "" = /dev/shm/lossgauge-<uid>
  const char* group = nullptr;      // name of a group that may read; NULL or "" = the process's
  lg_ring_identity identity{};      // run, attempt, layout, names, declared values, attempt start; the rest is filled in
};

class Segment {
 public:
  // Makes a new segment, or says why not (lg_code; the message names path and cause). Nothing is left behind on failure. Never
  // waits longer than some seconds for other producers that start in the same directory. May throw std::bad_alloc.
  static int Create(const SegmentRequest& request, std::unique_ptr<Segment>* segment);

  // Releases the lock and unmaps. The files stay for the reader. Not for use in a forked child.
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  ring::RingWriter<>& steps() noexcept { return *steps_; }
  ring::RingWriter<>& events() noexcept { return *events_; }
  const std::string& steps_path() const noexcept { return steps_path_; }
  std::size_t bytes() const noexcept;
  // The mapped step ring, for a device that writes it itself.
  void* steps_memory() const noexcept { return mapped_[0]; }
  std::size_t steps_bytes() const noexcept;

 private:
  Segment() = default;

  std::string key_;
  std::string steps_path_;
  int lock_descriptor_ = -1;  // holds the lock; closing it, or any other descriptor of the file, drops the lock
  void* mapped_[2] = {nullptr, nullptr};
  std::optional<ring::RingWriter<>> steps_;
  std::optional<ring::RingWriter<>> events_;
};

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_SEGMENT_H_
