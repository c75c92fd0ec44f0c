// A ring file read into memory, with no daemon and no producer needed. Reads only; probing the lock acquires nothing.
#ifndef LOSSGAUGE_SERVER_CTL_RING_FILE_H_
#define LOSSGAUGE_SERVER_CTL_RING_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/lossgauge/ring/ring_validate.h"

namespace lossgauge::ctl {

enum class Liveness { kUnknown, kAlive, kGone };

struct RingFile {
  std::uint64_t file_bytes = 0;
  ring::HeaderState state = ring::HeaderState::kNoContent;
  lg_ring_identity identity{};  // zeros unless a header was published
  lg_ring_status status{};      // of a valid header
  std::uint64_t published_untrusted = 0;
  Liveness liveness = Liveness::kUnknown;
  std::uint32_t lock_holder_pid = 0;  // in this process's namespace, 0 = not to be seen from here
  std::vector<std::uint64_t> words;  // the file, as far as its header announces it; a copy: a file that is cut meanwhile harms nothing

  bool readable() const { return state == ring::HeaderState::kValid; }
};

// Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (a directory, a device), INTERNAL; each names the path. A file that is no valid ring
// is no error here: `state` says what it is.
absl::StatusOr<RingFile> LoadRingFile(const std::string& path);

enum class SlotState {
  kRecord,
  kTorn,       // begun and not finished: it is being written, or its producer died at it
  kChecksum,   // finished, and its bytes are not those that were written
  kMisplaced,  // its sequence word belongs to no publication of this slot
};
const char* SlotStateName(SlotState state);

struct Slot {
  SlotState state = SlotState::kRecord;
  std::uint64_t publication = 0;  // 0 if misplaced
  std::uint32_t index = 0;
};

// Every slot that was ever written, oldest publication first, misplaced ones before all.
std::vector<Slot> ListSlots(const RingFile& file);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_RING_FILE_H_
