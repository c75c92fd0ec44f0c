#include "server/ingest/ring_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/lossgauge/ring/ring_reader.h"

namespace lossgauge::ingest {
namespace {

RingFileResult Refusal(std::string cause, std::string message) {
  RingFileResult result;
  result.cause = std::move(cause);
  result.message = std::move(message);
  return result;
}

std::string OwnerAndMode(const struct stat& info) {
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", info.st_mode & 07777);
  return absl::StrCat("owner ", info.st_uid, ":", info.st_gid, ", mode ", mode, "; this process is ", geteuid(), ":", getegid());
}

RingFileResult OpenFailure(const std::string& path, int error) {
  struct stat info = {};
  const std::string owner = lstat(path.c_str(), &info) == 0 ? absl::StrCat(" (", OwnerAndMode(info), ")") : "";
  const std::string message = absl::StrCat("cannot open ring ", path, ": ", std::strerror(error), owner);
  if (error == ENOENT) {
    RingFileResult result = Refusal("gone", message);
    result.is_pending = true;
    return result;
  }
  if (error == ELOOP) return Refusal("symbolic_link", absl::StrCat("ring ", path, " is a symbolic link: those are not followed"));
  if (error == EACCES || error == EPERM) return Refusal("permission_denied", message);
  return Refusal("open_failed", message);
}

bool AxisIsSane(const lg_axis& axis) { return axis.size >= 1 && axis.index < axis.size && axis.size <= (1u << 24); }

// Layout words decide how sums are formed: what contradicts itself is refused.
bool LayoutIsSane(const lg_layout& l) {
  return l.world_size >= 1 && l.world_size <= (1u << 24) && l.rank < l.world_size && AxisIsSane(l.dp) && AxisIsSane(l.tp) &&
         AxisIsSane(l.pp) && AxisIsSane(l.cp) && AxisIsSane(l.ep) && l.has_loss <= 1 && l.shard_offset >= 0 && l.shard_columns >= 0 &&
         l.vocab_size >= 0;
}

}  // namespace

RingFileResult OpenRingFile(const std::string& path, std::uint32_t kind) {
  // O_NONBLOCK: a FIFO by that name must not stop the drain.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return OpenFailure(path, errno);
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};

  struct stat info = {};
  if (fstat(fd, &info) != 0) return Refusal("open_failed", absl::StrCat("cannot stat ring ", path, ": ", std::strerror(errno)));
  if (!S_ISREG(info.st_mode)) return Refusal("not_a_file", absl::StrCat("ring ", path, " is not a regular file (", OwnerAndMode(info), ")"));

  constexpr std::uint64_t kMaxFileBytes = LG_MAX_HEADER_BYTES + std::uint64_t{LG_MAX_SLOT_BYTES} * LG_MAX_SLOT_COUNT;
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t mapped_bytes = std::min(file_bytes, kMaxFileBytes);
  auto file = std::make_unique<RingFile>();
  if (mapped_bytes >= LG_RING_HEADER_BYTES && !file->mapping.Map(fd, mapped_bytes)) {
    return Refusal("map_failed", absl::StrCat("cannot map ring ", path, ": ", std::strerror(errno)));
  }
  const ring::HeaderState state = ring::ReadHeader(file->mapping.data(), mapped_bytes, &file->identity);
  if (file->mapping.broken()) return Refusal("truncated", absl::StrCat("ring ", path, " shrank while its header was read"));
  if (state != ring::HeaderState::kValid) {
    RingFileResult result = Refusal(ring::HeaderStateName(state), absl::StrCat("ring ", path, ": ", ring::DescribeHeader(state, file_bytes, file->identity)));
    result.is_pending = ring::IsPending(state);
    return result;
  }
  if (file->identity.kind != kind) {
    return Refusal("other_kind", absl::StrCat("ring ", path, " is of kind ", file->identity.kind, ", its name says ", kind));
  }
  if (!LayoutIsSane(file->identity.layout)) {
    const lg_layout& l = file->identity.layout;
    return Refusal("bad_layout", absl::StrCat("ring ", path, " announces an impossible layout: rank ", l.rank, " of ", l.world_size,
                                              ", tp ", l.tp.index, "/", l.tp.size, ", dp ", l.dp.index, "/", l.dp.size));
  }
  RingFileResult result;
  result.file = std::move(file);
  return result;
}

}  // namespace lossgauge::ingest
