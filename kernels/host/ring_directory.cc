#include "kernels/host/ring_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/host/error.h"
#include "kernels/host/launcher_identity.h"
#include "kernels/host/segment_name.h"
#include "proto/lossgauge/ring/ring_reader.h"

namespace lossgauge {
namespace {

lg_code CodeOfErrno(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
      return LG_PERMISSION_DENIED;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return LG_RESOURCE_EXHAUSTED;
    default:
      return LG_UNAVAILABLE;
  }
}

// The header of another producer's step ring, if it has a valid one.
bool ReadIdentity(int directory_descriptor, const std::string& key, lg_ring_identity* identity) {
  const int file = ::openat(directory_descriptor, (key + ".steps").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct stat status {};
  bool valid = false;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size >= std::int64_t{LG_RING_HEADER_BYTES}) {
    void* mapped = ::mmap(nullptr, LG_RING_HEADER_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) {
      valid = ring::ReadHeader(mapped, static_cast<std::uint64_t>(status.st_size), identity) == ring::HeaderState::kValid;
      ::munmap(mapped, LG_RING_HEADER_BYTES);
    }
  }
  ::close(file);
  return valid;
}

int RefuseSecondProducer(const lg_ring_identity& other, std::string_view run, std::string_view attempt, std::uint32_t rank) {
  return SetError(LG_ALREADY_EXISTS,
                  "run \"%.*s\" attempt \"%.*s\" rank %u: process %u (uid %u), started %s, publishes under this name already",
                  static_cast<int>(run.size()), run.data(), static_cast<int>(attempt.size()), attempt.data(), rank,
                  other.producer_pid, other.producer_uid, FormatUtc(other.created_wall_ns).c_str());
}

void Remove(int directory_descriptor, const std::string& key) {
  // The lock file goes last: as long as any file of the segment is left, it can be told that nobody holds it.
  for (const char* suffix : {".steps", ".events", ".lock"}) ::unlinkat(directory_descriptor, (key + suffix).c_str(), 0);
}

// What of the directory this process has mapped, by /proc: names of files are in it. A second copy of this library in the process (a Python package's beside a
// C++ extension's) has segments that our list does not know, and whoever closes any descriptor of their lock files drops their locks: they would look dead.
std::string MappedFiles() {
  std::string text;
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;  // no /proc: then nothing is known
  char buffer[8192];
  for (ssize_t bytes; (bytes = ::read(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(bytes));
  ::close(file);
  return text;
}

struct DeadSegment {
  timespec made{};
  std::string key;
  uid_t owner = 0;
  bool is_ours = false;  // of the run and rank that make room
};

// When the segment was made and by whom: as the first of its files that is left says.
DeadSegment Examine(int directory_descriptor, const std::string& key) {
  DeadSegment segment;
  segment.key = key;
  for (const char* suffix : {".lock", ".events", ".steps"}) {
    struct stat status {};
    if (::fstatat(directory_descriptor, (key + suffix).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    segment.made = status.st_ctim;
    segment.owner = status.st_uid;
    break;
  }
  return segment;
}

}  // namespace

RingDirectory::~RingDirectory() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int RingDirectory::Open(const char* path, gid_t group) {
  const uid_t uid = ::geteuid();
  const bool is_default = path == nullptr || *path == '\0';
  path_ = is_default ? "/dev/shm/lossgauge-" + std::to_string(uid) : std::string(path);
  const char* text = path_.c_str();
  const bool made = ::mkdir(text, 0750) == 0;
  if (!made && errno != EEXIST) {
    const int error = errno;
    return SetError(CodeOfErrno(error), "ring directory %s: cannot be made by uid %u: %s", text, uid, std::strerror(error));
  }
  descriptor_ = ::open(text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor_ < 0) {
    const int error = errno;
    return SetError(CodeOfErrno(error), "ring directory %s: cannot be opened by uid %u: %s", text, uid,
                    error == ENOTDIR ? "not a directory, or a symbolic link" : std::strerror(error));
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    return SetError(LG_UNAVAILABLE, "ring directory %s: fstat: %s", text, std::strerror(errno));
  }
  const unsigned mode = status.st_mode & 07777;
  const bool is_ours = status.st_uid == uid;
  if (is_default && (!is_ours || (mode & 022) != 0)) {
    return SetError(LG_PERMISSION_DENIED,
                    "ring directory %s: must belong to uid %u with mode 0750, but belongs to uid %u with mode %04o", text, uid,
                    status.st_uid, mode);
  }
  if (!is_ours && status.st_uid != 0 && (mode & 002) != 0 && (mode & 01000) == 0) {
    return SetError(LG_PERMISSION_DENIED,
                    "ring directory %s: belongs to uid %u and everybody may replace files in it (mode %04o, this is uid %u)",
                    text, status.st_uid, mode, uid);
  }
  // The mode is set, not left to the umask. Somebody else's directory keeps the group and mode that its owner chose.
  const bool give = group != static_cast<gid_t>(-1) && status.st_gid != group && (made || (is_default && is_ours));
  if (give && ::fchown(descriptor_, static_cast<uid_t>(-1), group) != 0) {
    return SetError(LG_PERMISSION_DENIED, "ring directory %s: cannot be given to group %u: %s", text, group,
                    std::strerror(errno));
  }
  if (made && ::fchmod(descriptor_, 0750) != 0) {
    return SetError(LG_PERMISSION_DENIED, "ring directory %s: mode 0750 cannot be set: %s", text, std::strerror(errno));
  }
  return LG_OK;
}

int FindGroup(const char* name, gid_t* group) {
  *group = static_cast<gid_t>(-1);
  if (name == nullptr || *name == '\0') return LG_OK;
  std::vector<char> buffer(4096);
  struct group entry {};
  struct group* found = nullptr;
  int error = ::getgrnam_r(name, &entry, buffer.data(), buffer.size(), &found);
  while (error == ERANGE && buffer.size() < (std::size_t{1} << 20)) {
    buffer.resize(buffer.size() * 4);
    error = ::getgrnam_r(name, &entry, buffer.data(), buffer.size(), &found);
  }
  if (found == nullptr) return SetError(LG_NOT_FOUND, "group: no group is called \"%.64s\" on this machine", name);
  *group = found->gr_gid;
  return LG_OK;
}

bool IsLockHeld(int directory_descriptor, const std::string& key) {
  // O_NONBLOCK: a FIFO of that name must not stop us.
  const int file = ::openat(directory_descriptor, (key + ".lock").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  // No lock file: nobody can hold it. Not readable: somebody else's; leave it alone.
  if (file < 0) return errno != ENOENT;
  struct flock probe {};
  probe.l_type = F_WRLCK;
  probe.l_whence = SEEK_SET;
  const bool held = ::fcntl(file, F_GETLK, &probe) != 0 || probe.l_type != F_UNLCK;
  ::close(file);
  return held;
}

int MakeRoom(const RingDirectory& directory, const ProcessSegments& own, std::string_view run, std::string_view attempt,
             std::uint32_t rank) {
  const int listing_descriptor = ::openat(directory.descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* opened = listing_descriptor < 0 ? nullptr : ::fdopendir(listing_descriptor);
  if (opened == nullptr) {
    const int error = errno;
    if (listing_descriptor >= 0) ::close(listing_descriptor);
    return SetError(CodeOfErrno(error), "ring directory %s: cannot be listed: %s", directory.path().c_str(),
                    std::strerror(error));
  }
  const auto close_listing = [](DIR* d) { ::closedir(d); };
  const std::unique_ptr<DIR, decltype(close_listing)> listing(opened, close_listing);
  std::vector<std::string> keys;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view key = KeyOfFile(entry->d_name);
    if (!key.empty()) keys.emplace_back(key);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());

  const std::string prefix = SegmentPrefix(run, rank);
  const std::string mapped = keys.empty() ? std::string() : MappedFiles();
  const auto is_of_this_process = [&own, &mapped](const std::string& key) {
    return own.Holds(key) || mapped.find(key + ".steps") != std::string::npos;
  };
  std::vector<DeadSegment> dead;
  for (const std::string& key : keys) {
    const bool is_ours = key.compare(0, prefix.size(), prefix) == 0;
    if (is_of_this_process(key) || IsLockHeld(directory.descriptor(), key)) {
      lg_ring_identity other;
      if (is_ours && ReadIdentity(directory.descriptor(), key, &other) && other.layout.rank == rank &&
          ring::FieldText(other.run, sizeof other.run) == run &&
          ring::FieldText(other.attempt, sizeof other.attempt) == attempt) {
        return RefuseSecondProducer(other, run, attempt, rank);
      }
      continue;
    }
    DeadSegment segment = Examine(directory.descriptor(), key);
    segment.is_ours = is_ours;
    dead.push_back(std::move(segment));
  }
  // Newest first. The newest of ours may hold what nobody has drained yet, or what a post-mortem wants.
  std::sort(dead.begin(), dead.end(), [](const DeadSegment& a, const DeadSegment& b) {
    return std::tie(b.made.tv_sec, b.made.tv_nsec, b.key) < std::tie(a.made.tv_sec, a.made.tv_nsec, a.key);
  });
  std::size_t kept = 0;
  bool kept_ours = false;
  for (const DeadSegment& segment : dead) {
    const bool keep = segment.owner != ::geteuid() || (kept < kMaxDeadSegments && !(segment.is_ours && kept_ours));
    if (!keep) {
      Remove(directory.descriptor(), segment.key);
      continue;
    }
    ++kept;
    kept_ours = kept_ours || segment.is_ours;
  }
  return LG_OK;
}

}  // namespace lossgauge
