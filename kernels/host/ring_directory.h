// The directory that a producer puts its segments in: opened once by descriptor, checked for owner and mode, and searched for
// segments that earlier producers of the same run and rank left behind.
#ifndef LOSSGAUGE_KERNELS_HOST_RING_DIRECTORY_H_
#define LOSSGAUGE_KERNELS_HOST_RING_DIRECTORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/host/process_segments.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge {

class RingDirectory {
 public:
  RingDirectory() = default;
  ~RingDirectory();
  RingDirectory(const RingDirectory&) = delete;
  RingDirectory& operator=(const RingDirectory&) = delete;

  // Opens `path`, or /dev/shm/lossgauge-<uid> if it is empty, making it (0750) if its parent exists. No symbolic link as last
  // component. The default one must be ours and nobody else may write to it; a given one may belong to root or to another user
  // unless everybody could replace files in it. `group` is the id that may read, or -1. lg_code; the message names path, uid
  // and mode.
  int Open(const char* path, gid_t group);

  int descriptor() const noexcept { return descriptor_; }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

// LG_NOT_FOUND if there is no group of that name. NULL or "" gives -1.
int FindGroup(const char* name, gid_t* group);

// Whether the producer of the segment still lives, judged by its lock. Never acquires it. The segment must not be one of our
// own.
bool IsLockHeld(int directory_descriptor, const std::string& key);

// Refuses if a live producer has the same run, attempt and rank (LG_ALREADY_EXISTS; the message names its process and start),
// then removes dead segments: those of this run and rank but for the newest, and of all runs those beyond the kMaxDeadSegments
// newest, so that jobs whose every start has a new name do not fill the memory either. Live segments and those of other users
// are not touched.
constexpr std::size_t kMaxDeadSegments = 64;  // 30 MB
int MakeRoom(const RingDirectory& directory, const ProcessSegments& own, std::string_view run, std::string_view attempt,
             std::uint32_t rank);

}  // namespace lossgauge

#endif  // LOSSGAUGE_KERNELS_HOST_RING_DIRECTORY_H_
