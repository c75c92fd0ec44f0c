#include "server/ctl/ring_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/ring_reader.h"

namespace lossgauge::ctl {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status ErrnoStatus(int error, const std::string& path) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::InternalError(text);
}

// Reads what there is, up to words->size() words; the rest stays zero.
absl::Status ReadFile(int fd, const std::string& path, std::vector<std::uint64_t>* words) {
  char* const base = reinterpret_cast<char*>(words->data());
  const std::size_t wanted = words->size() * sizeof(std::uint64_t);
  std::size_t done = 0;
  while (done < wanted) {
    const ssize_t got = pread(fd, base + done, wanted - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return absl::OkStatus();
}

// The producer holds a write lock on the file beside its rings for as long as it lives.
void ProbeLock(const std::string& path, RingFile* file) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return;
  const Descriptor lock(open((path.substr(0, dot) + ".lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (lock.get() < 0) return;
  struct flock probe {};
  probe.l_type = F_RDLCK;
  probe.l_whence = SEEK_SET;
  if (fcntl(lock.get(), F_GETLK, &probe) != 0) return;
  file->liveness = probe.l_type == F_UNLCK ? Liveness::kGone : Liveness::kAlive;
  if (file->liveness == Liveness::kAlive && probe.l_pid > 0) file->lock_holder_pid = static_cast<std::uint32_t>(probe.l_pid);
}

}  // namespace

const char* SlotStateName(SlotState state) {
  switch (state) {
    case SlotState::kRecord: return "record";
    case SlotState::kTorn: return "torn";
    case SlotState::kChecksum: return "checksum";
    case SlotState::kMisplaced: return "misplaced";
  }
  return "?";
}

absl::StatusOr<RingFile> LoadRingFile(const std::string& path) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a named pipe must not block us
  if (fd.get() < 0) return ErrnoStatus(errno, path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a file; a ring ends in .steps or .events"));
  RingFile file;
  file.file_bytes = static_cast<std::uint64_t>(info.st_size);
  file.words.resize(LG_RING_HEADER_BYTES / sizeof(std::uint64_t));
  if (const absl::Status status = ReadFile(fd.get(), path, &file.words); !status.ok()) return status;
  file.state = ring::ReadHeader(file.words.data(), file.file_bytes, &file.identity);
  ProbeLock(path, &file);
  if (!file.readable()) return file;
  // Bounded by LG_MAX_*: below 2^29 bytes, and no more than the file has.
  const std::uint64_t announced = file.identity.header_bytes + std::uint64_t{file.identity.slot_bytes} * file.identity.slot_count;
  file.words.assign(announced / sizeof(std::uint64_t), 0);
  if (const absl::Status status = ReadFile(fd.get(), path, &file.words); !status.ok()) return status;
  const auto* header = reinterpret_cast<const lg_ring_header*>(file.words.data());
  file.status = header->status;
  file.published_untrusted = ring::ReadProgress(header, file.identity).whole;
  return file;
}

std::vector<Slot> ListSlots(const RingFile& file) {
  std::vector<Slot> slots;
  if (!file.readable()) return slots;
  const lg_ring_identity& id = file.identity;
  for (std::uint32_t index = 0; index < id.slot_count; ++index) {
    const std::uint64_t* words = file.words.data() + (id.header_bytes + std::uint64_t{id.slot_bytes} * index) / sizeof(std::uint64_t);
    const std::uint64_t sequence = words[0];
    if (sequence == 0) continue;
    const std::uint64_t publication = sequence / 2 + sequence % 2;
    if ((publication - 1) % id.slot_count != index) {
      slots.push_back({SlotState::kMisplaced, 0, index});
    } else if (sequence % 2 == 1) {
      slots.push_back({SlotState::kTorn, publication, index});
    } else {
      const bool whole = words[id.record_words - 1] == lg_ring_checksum(id.segment_id, words, id.record_words);
      slots.push_back({whole ? SlotState::kRecord : SlotState::kChecksum, publication, index});
    }
  }
  std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
    return a.publication != b.publication ? a.publication < b.publication : a.index < b.index;
  });
  return slots;
}

}  // namespace lossgauge::ctl
