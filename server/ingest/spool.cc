#include "server/ingest/spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/ring_abi.h"

namespace lossgauge::ingest {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".spool";
constexpr std::uint64_t kMagic = UINT64_C(0x314c4f4f5053474c);  // "LGSPOOL1"
constexpr std::uint32_t kMaxFrameBytes = 16u << 20;

// Before each frame, in this machine's byte order: nobody else reads it.
struct FrameHead {
  std::uint64_t magic = kMagic;
  std::uint64_t sequence = 0;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // of the head without it and the bytes
};

std::uint64_t Checksum(const FrameHead& head, std::string_view bytes) {
  std::uint64_t sum = lg_ring_checksum_share(head.sequence, 0) + lg_ring_checksum_share(head.records, 1) + lg_ring_checksum_share(head.bytes, 2);
  std::uint64_t index = 3;
  for (std::size_t i = 0; i < bytes.size(); i += 8, ++index) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    sum += lg_ring_checksum_share(word, index);
  }
  return sum;
}

bool ReadAt(int fd, std::uint64_t offset, char* out, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

Spool::File::~File() {
  if (fd >= 0) close(fd);
}

Spool::Spool(const SpoolOptions& options) : options_(options), released_(options.readers), dropped_(options.readers) {}
Spool::~Spool() = default;

absl::StatusOr<std::unique_ptr<Spool>> Spool::Open(const SpoolOptions& options) {
  std::unique_ptr<Spool> spool(new Spool(options));
  if (!options.directory.empty()) {
    if (absl::Status status = spool->Recover(); !status.ok()) return status;
  }
  return spool;
}

absl::Status Spool::Recover() {
  std::error_code error;
  const bool made = fs::create_directories(options_.directory, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create the spool ", options_.directory, ": ", error.message()));
  if (made) (void)chmod(options_.directory.c_str(), 0750);
  if (access(options_.directory.c_str(), W_OK | X_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("the spool ", options_.directory, " cannot be written by uid ", geteuid(), ": ", std::strerror(errno)));
  }
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(options_.directory, error)) {
    if (entry.path().extension() == kSuffix) paths.push_back(entry.path().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot read the spool ", options_.directory, ": ", error.message()));
  std::sort(paths.begin(), paths.end());  // names are numbers of equal length
  for (std::string& path : paths) {
    auto file = std::make_unique<File>();
    file->path = std::move(path);
    if (absl::Status status = Load(file.get()); !status.ok()) return status;
    // The name says where numbering stood when the file began, even if nothing of it is left.
    const std::string stem = fs::path(file->path).stem().string();
    next_sequence_ = std::max<std::uint64_t>(next_sequence_, std::strtoull(stem.c_str(), nullptr, 10));
    if (!file->frames.empty()) {
      newest_ = std::max(newest_, file->frames.back().sequence);
      next_sequence_ = std::max(next_sequence_, newest_ + 1);
    }
    bytes_ += file->size;
    files_.push_back(std::move(file));
  }
  RemoveReleased();
  return absl::OkStatus();
}

// What is whole is kept; what follows the first frame that is not is cut off.
absl::Status Spool::Load(File* file) {
  file->fd = open(file->path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat info = {};
  if (file->fd < 0 || fstat(file->fd, &info) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot open ", file->path, ": ", std::strerror(errno)));
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  std::uint64_t sequence = 0;
  std::string bytes;
  while (file->size + sizeof(FrameHead) <= size) {
    FrameHead head;
    if (!ReadAt(file->fd, file->size, reinterpret_cast<char*>(&head), sizeof head)) break;
    if (head.magic != kMagic || head.bytes > kMaxFrameBytes || file->size + sizeof head + head.bytes > size || head.sequence <= sequence) break;
    bytes.resize(head.bytes);
    if (!ReadAt(file->fd, file->size + sizeof head, bytes.data(), bytes.size()) || Checksum(head, bytes) != head.checksum) break;
    file->frames.push_back({head.sequence, head.records, file->size + sizeof head, static_cast<std::uint32_t>(head.bytes)});
    file->size += sizeof head + head.bytes;
    sequence = head.sequence;
  }
  if (file->size < size && ftruncate(file->fd, static_cast<off_t>(file->size)) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot cut a half-written frame off ", file->path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status Spool::BeginFile() {
  auto file = std::make_unique<File>();
  if (!options_.directory.empty()) {
    file->path = absl::StrFormat("%s/%020d%s", options_.directory, next_sequence_, std::string(kSuffix));
    file->fd = open(file->path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (file->fd < 0) return absl::UnavailableError(absl::StrCat("cannot create ", file->path, ": ", std::strerror(errno)));
  }
  files_.push_back(std::move(file));
  begin_file_ = false;
  return absl::OkStatus();
}

bool Spool::Write(File* file, std::string_view bytes) {
  if (file->fd < 0) {
    file->memory.append(bytes);
    return true;
  }
  std::uint64_t offset = file->size;
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file->fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return true;
}

absl::StatusOr<std::uint64_t> Spool::Append(std::string_view frame, std::uint64_t records, const std::function<std::string()>& preamble) {
  const std::lock_guard lock(mutex_);
  if (!begin_file_ && (files_.empty() || files_.back()->size >= options_.file_bytes)) begin_file_ = true;
  // Nobody needs the last file any more: with a new one it can go, and a restart has less to send again.
  const std::uint64_t least = released_.empty() ? 0 : *std::min_element(released_.begin(), released_.end());
  if (!begin_file_ && files_.back()->size >= options_.file_bytes / 16 && !files_.back()->frames.empty() && files_.back()->frames.back().sequence <= least) {
    begin_file_ = true;
  }
  absl::Status status;
  const bool begins = begin_file_;
  if (begins) status = BeginFile();
  std::string bytes(sizeof(FrameHead), '\0');
  if (begins) bytes += preamble();
  bytes += frame;
  FrameHead head;
  head.sequence = next_sequence_;
  head.records = records;
  head.bytes = bytes.size() - sizeof head;
  if (status.ok() && head.bytes > kMaxFrameBytes) status = absl::InvalidArgumentError(absl::StrCat("a frame of ", head.bytes, " bytes"));
  head.checksum = Checksum(head, std::string_view(bytes).substr(sizeof head));
  std::memcpy(bytes.data(), &head, sizeof head);
  ++next_sequence_;
  if (status.ok() && !Write(files_.back().get(), bytes)) {
    status = absl::UnavailableError(absl::StrCat("cannot write ", files_.back()->path, ": ", std::strerror(errno)));
    if (begins) {  // the next frame needs what this one would have told
      (void)unlink(files_.back()->path.c_str());
      files_.pop_back();
      begin_file_ = true;
    } else if (ftruncate(files_.back()->fd, static_cast<off_t>(files_.back()->size)) != 0) {
      begin_file_ = true;  // what stands behind the last whole frame is cut off when the spool is opened
    }
  }
  if (!status.ok()) {
    ++write_errors_;
    for (std::uint64_t& dropped : dropped_) dropped += records;
    return status;
  }
  File& file = *files_.back();
  file.frames.push_back({head.sequence, records, file.size + sizeof head, static_cast<std::uint32_t>(head.bytes)});
  file.size += bytes.size();
  bytes_ += bytes.size();
  newest_ = head.sequence;
  if (begins) RemoveReleased();
  while (bytes_ > options_.max_bytes && files_.size() > 1) DropOldest();
  return head.sequence;
}

void Spool::DropOldest() {
  const File& file = *files_.front();
  for (const Frame& frame : file.frames) {
    for (std::size_t reader = 0; reader < released_.size(); ++reader) {
      if (frame.sequence > released_[reader]) dropped_[reader] += frame.records;
    }
  }
  bytes_ -= file.size;
  if (!file.path.empty()) (void)unlink(file.path.c_str());
  files_.pop_front();
}

std::string Spool::Bytes(const File& file, const Frame& frame) const {
  if (file.fd < 0) return file.memory.substr(frame.offset, frame.bytes);
  std::string bytes(frame.bytes, '\0');
  if (!ReadAt(file.fd, frame.offset, bytes.data(), bytes.size())) bytes.clear();
  return bytes;
}

std::optional<SpoolFrame> Spool::Read(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  for (const auto& file : files_) {
    if (file->frames.empty() || file->frames.back().sequence < sequence) continue;
    const auto frame = std::lower_bound(file->frames.begin(), file->frames.end(), sequence, [](const Frame& f, std::uint64_t s) { return f.sequence < s; });
    return SpoolFrame{frame->sequence, frame->records, Bytes(*file, *frame)};
  }
  return std::nullopt;
}

std::vector<SpoolFrame> Spool::Before(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  std::vector<SpoolFrame> before;
  for (auto file = files_.rbegin(); file != files_.rend(); ++file) {
    if ((*file)->frames.empty() || (*file)->frames.front().sequence > sequence) continue;
    // A sequence beyond this file's last belongs to it only while it is the last file.
    if (file != files_.rbegin() && (*file)->frames.back().sequence < sequence) break;
    for (const Frame& frame : (*file)->frames) {
      if (frame.sequence < sequence) before.push_back({frame.sequence, frame.records, Bytes(**file, frame)});
    }
    break;
  }
  return before;
}

void Spool::Release(std::size_t reader, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  released_[reader] = std::max(released_[reader], sequence);
  RemoveReleased();
}

void Spool::RemoveReleased() {
  const std::uint64_t least = released_.empty() ? 0 : *std::min_element(released_.begin(), released_.end());
  // The last file stays, whatever was released of it: its name keeps the numbering over a restart, and it tells what the next frames mean.
  while (files_.size() > 1 && (files_.front()->frames.empty() || files_.front()->frames.back().sequence <= least)) {
    bytes_ -= files_.front()->size;
    if (!files_.front()->path.empty()) (void)unlink(files_.front()->path.c_str());
    files_.pop_front();
  }
}

std::uint64_t Spool::newest() const {
  const std::lock_guard lock(mutex_);
  return newest_;
}

std::uint64_t Spool::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::uint64_t Spool::dropped(std::size_t reader) const {
  const std::lock_guard lock(mutex_);
  return dropped_[reader];
}

std::uint64_t Spool::write_errors() const {
  const std::lock_guard lock(mutex_);
  return write_errors_;
}

}  // namespace lossgauge::ingest
