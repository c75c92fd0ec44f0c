#include "kernels/host/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "kernels/host/clocks.h"
#include "kernels/host/error.h"
#include "kernels/host/process_segments.h"
#include "kernels/host/ring_directory.h"
#include "kernels/host/segment_name.h"
#include "proto/lossgauge/ring/boot_id.h"
#include "proto/lossgauge/ring/ring_validate.h"

namespace lossgauge {
namespace {

constexpr int kWaitForOthersMs = 5000;
constexpr std::size_t kStepsBytes = ring::RingFileBytes(LG_STEP_SLOT_BYTES, LG_STEP_SLOT_COUNT);
constexpr std::size_t kEventsBytes = ring::RingFileBytes(LG_EVENT_SLOT_BYTES, LG_EVENT_SLOT_COUNT);

bool TryLock(int file) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(file, F_SETLK, &lock) == 0;
}

// Keeps two producers of one user from looking for each other before either can be seen. Dies with its process, and is not
// inherited. If a stopped process sits on it, we go on without it after a while rather than hold up the job.
class CreationGuard {
 public:
  explicit CreationGuard(int directory_descriptor) {
    const std::string name = ".creating-" + std::to_string(::geteuid());
    file_ = ::openat(directory_descriptor, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (file_ < 0) return;
    for (int waited_ms = 0; waited_ms < kWaitForOthersMs && !TryLock(file_); ++waited_ms) {
      const timespec millisecond{0, 1000000};
      ::nanosleep(&millisecond, nullptr);
    }
  }
  ~CreationGuard() {
    if (file_ >= 0) ::close(file_);
  }
  CreationGuard(const CreationGuard&) = delete;
  CreationGuard& operator=(const CreationGuard&) = delete;

 private:
  int file_;
};

// A new file of ours in the directory; -1 with errno set.
int MakeFile(int directory_descriptor, const std::string& name, gid_t group) {
  const int file = ::openat(directory_descriptor, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640);
  if (file < 0) return -1;
  // After chown, because chown may clear bits; explicit, because the umask of the job may have taken the group's.
  if ((group != static_cast<gid_t>(-1) && ::fchown(file, static_cast<uid_t>(-1), group) != 0) || ::fchmod(file, 0640) != 0) {
    const int error = errno;
    ::close(file);
    errno = error;
    return -1;
  }
  return file;
}

// Every page is there before anybody touches it: a full tmpfs is an error here, not a SIGBUS later.
int Reserve(int file, std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) return EFBIG;
  int error;
  do {
    error = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

class Maker {
 public:
  Maker(const RingDirectory& directory, gid_t group, std::string key)
      : directory_(directory), group_(group), key_(std::move(key)) {}
  ~Maker() {
    if (kept_) return;
    for (const char* suffix : {".steps", ".events", ".lock"}) {
      ::unlinkat(directory_.descriptor(), (key_ + suffix).c_str(), 0);
    }
  }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;
  void Keep() { kept_ = true; }

  int MakeLock(int* descriptor) {
    *descriptor = MakeFile(directory_.descriptor(), key_ + ".lock", group_);
    if (*descriptor < 0) return Failed(".lock", "cannot be made", errno);
    if (!TryLock(*descriptor)) return Failed(".lock", "cannot be locked", errno);
    return LG_OK;
  }

  int MakeRing(const char* suffix, std::size_t bytes, void** mapped) {
    const int file = MakeFile(directory_.descriptor(), key_ + suffix, group_);
    if (file < 0) return Failed(suffix, "cannot be made", errno);
    const int error = Reserve(file, bytes);
    void* address =
        error == 0 ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0) : MAP_FAILED;
    const int map_error = errno;
    ::close(file);
    if (error != 0) return NoSpace(suffix, bytes, error);
    if (address == MAP_FAILED) return Failed(suffix, "cannot be mapped", map_error);
    // A child must not write into its parent's ring: without the mapping it cannot.
    ::madvise(address, bytes, MADV_DONTFORK);
    *mapped = address;
    return LG_OK;
  }

 private:
  int Failed(const char* suffix, const char* what, int error) {
    const bool denied = error == EACCES || error == EPERM || error == EROFS;
    const bool exhausted = error == ENOSPC || error == EDQUOT || error == ENOMEM || error == EMFILE || error == ENFILE;
    return SetError(denied      ? LG_PERMISSION_DENIED
                    : exhausted ? LG_RESOURCE_EXHAUSTED
                                : LG_UNAVAILABLE,
                    "ring file %s/%s%s: %s by uid %u (mode 0640): %s", directory_.path().c_str(), key_.c_str(), suffix, what,
                    ::geteuid(), std::strerror(error));
  }

  int NoSpace(const char* suffix, std::size_t bytes, int error) {
    struct statvfs space {};
    ::fstatvfs(directory_.descriptor(), &space);
    return SetError(
        LG_RESOURCE_EXHAUSTED,
        "ring file %s/%s%s: %zu bytes cannot be reserved (%s): the file system has %llu bytes left, a rank needs %zu",
        directory_.path().c_str(), key_.c_str(), suffix, bytes, std::strerror(error),
        static_cast<unsigned long long>(space.f_bavail) * space.f_frsize, kStepsBytes + kEventsBytes);
  }

  const RingDirectory& directory_;
  const gid_t group_;
  const std::string key_;
  bool kept_ = false;
};

}  // namespace

int Segment::Create(const SegmentRequest& request, std::unique_ptr<Segment>* result) {
  gid_t group;
  int code = FindGroup(request.group, &group);
  if (code != LG_OK) return code;
  RingDirectory directory;
  code = directory.Open(request.directory, group);
  if (code != LG_OK) return code;

  lg_ring_identity identity = request.identity;
  if (::getrandom(identity.segment_id, sizeof identity.segment_id, 0) != static_cast<ssize_t>(sizeof identity.segment_id)) {
    return SetError(LG_UNAVAILABLE, "getrandom: %s", std::strerror(errno));
  }
  (void)ring::ReadBootId(identity.boot_id);
  identity.producer_pid = static_cast<std::uint32_t>(::getpid());
  identity.producer_uid = ::geteuid();

  const std::string run(ring::FieldText(identity.run, sizeof identity.run));
  const std::string attempt(ring::FieldText(identity.attempt, sizeof identity.attempt));
  const std::string key = SegmentKey(run, identity.layout.rank, identity.segment_id);

  ProcessSegments own(2 * kWaitForOthersMs);
  if (!own.locked())
    return SetError(LG_UNAVAILABLE, "other threads of this process have been opening gauges for %d ms", 2 * kWaitForOthersMs);
  const CreationGuard guard(directory.descriptor());
  code = MakeRoom(directory, own, run, attempt, identity.layout.rank);
  if (code != LG_OK) return code;

  Maker maker(directory, group, key);
  std::unique_ptr<Segment> segment(new Segment);
  code = maker.MakeLock(&segment->lock_descriptor_);
  if (code == LG_OK) code = maker.MakeRing(".events", kEventsBytes, &segment->mapped_[1]);
  if (code == LG_OK) code = maker.MakeRing(".steps", kStepsBytes, &segment->mapped_[0]);
  if (code != LG_OK) return code;

  segment->steps_path_ = directory.path() + "/" + key + ".steps";
  std::string registered = key;
  own.Insert(key);
  segment->key_ = std::move(registered);
  identity.created_boot_ns = BootNs();
  identity.created_wall_ns = WallNs();
  ring::SetFormat(&identity, LG_RING_KIND_EVENTS);
  segment->events_.emplace(segment->mapped_[1], identity);
  ring::SetFormat(&identity, LG_RING_KIND_STEPS);
  segment->steps_.emplace(segment->mapped_[0], identity);
  maker.Keep();
  *result = std::move(segment);
  return LG_OK;
}

Segment::~Segment() {
  if (mapped_[0] != nullptr) ::munmap(mapped_[0], kStepsBytes);
  if (mapped_[1] != nullptr) ::munmap(mapped_[1], kEventsBytes);
  if (key_.empty()) {  // never registered: Create() failed and holds ProcessSegments already
    if (lock_descriptor_ >= 0) ::close(lock_descriptor_);
    return;
  }
  // Forgetting the segment and dropping its lock must look like one act to threads that search for dead ones.
  ProcessSegments own(2 * kWaitForOthersMs);
  if (own.locked()) own.Erase(key_);
  ::close(lock_descriptor_);
}

std::size_t Segment::bytes() const noexcept { return kStepsBytes + kEventsBytes; }
std::size_t Segment::steps_bytes() const noexcept { return kStepsBytes; }

}  // namespace lossgauge
