// What is to be forwarded, until every daemon has it: numbered frames in files of about a mebibyte, oldest first.
//
// Frames are written (not synced: they survive the death of the process, not of the machine) before the sidecar commits that it has read
// what is in them. A file begins with all that is needed to understand it, so any file may be dropped. Beyond `max_bytes` the oldest file is
// dropped and counted. A frame that a killed process left half-written is cut off when the spool is opened.
//
// Append by one thread; everything else thread-safe.
#ifndef LOSSGAUGE_SERVER_INGEST_SPOOL_H_
#define LOSSGAUGE_SERVER_INGEST_SPOOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lossgauge::ingest {

struct SpoolOptions {
  std::string directory;  // created 0750; empty = memory, and nothing survives
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  std::uint64_t file_bytes = std::uint64_t{1} << 20;
  std::size_t readers = 1;  // each has to release a frame
};

struct SpoolFrame {
  std::uint64_t sequence = 0;
  std::uint64_t records = 0;
  std::string bytes;
};

class Spool {
 public:
  // UNAVAILABLE, PERMISSION_DENIED name the directory.
  static absl::StatusOr<std::unique_ptr<Spool>> Open(const SpoolOptions& options);
  ~Spool();

  // `preamble` is asked for when a file begins and stands before the frame in it. Returns the frame's sequence; an error if it cannot be written:
  // then it is gone, and counted.
  absl::StatusOr<std::uint64_t> Append(std::string_view frame, std::uint64_t records, const std::function<std::string()>& preamble);

  // The first frame from `sequence` on; nothing if there is none yet.
  std::optional<SpoolFrame> Read(std::uint64_t sequence);
  // The frames before `sequence` in the file that has it or will have it: what is needed to understand what follows.
  std::vector<SpoolFrame> Before(std::uint64_t sequence);
  // A reader needs nothing up to here any more. What no reader needs is removed.
  void Release(std::size_t reader, std::uint64_t sequence);

  std::uint64_t newest() const;  // sequence of the last frame; 0 = none
  std::uint64_t bytes() const;
  // Records in frames that were dropped before the reader had released them.
  std::uint64_t dropped(std::size_t reader) const;
  std::uint64_t write_errors() const;

 private:
  struct Frame {
    std::uint64_t sequence = 0;
    std::uint64_t records = 0;
    std::uint64_t offset = 0;  // of its bytes
    std::uint32_t bytes = 0;
  };
  struct File {
    ~File();
    std::string path;  // empty in memory
    int fd = -1;
    std::string memory;
    std::uint64_t size = 0;
    std::vector<Frame> frames;
  };

  explicit Spool(const SpoolOptions& options);
  absl::Status Recover();
  absl::Status Load(File* file);
  absl::Status BeginFile();
  bool Write(File* file, std::string_view bytes);
  void DropOldest();
  void RemoveReleased();
  std::string Bytes(const File& file, const Frame& frame) const;

  const SpoolOptions options_;
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<File>> files_;
  std::uint64_t next_sequence_ = 1;
  std::uint64_t newest_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> released_;
  std::vector<std::uint64_t> dropped_;
  std::uint64_t write_errors_ = 0;
  bool begin_file_ = true;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_SPOOL_H_
