// Bytes of a file or of memory, read once, forward; and what stands before a reader of text: UTF-16 turned into UTF-8.
#ifndef LOSSGAUGE_SERVER_REPLAY_BYTE_SOURCE_H_
#define LOSSGAUGE_SERVER_REPLAY_BYTE_SOURCE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` bytes, 0 at the end. An error while reading counts as the end and is told by error().
  virtual std::size_t Read(char* buffer, std::size_t size) = 0;
  virtual std::string error() const { return ""; }
};

// NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (a directory), naming the path.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);
std::unique_ptr<ByteSource> MakeMemorySource(std::string_view bytes);  // which outlive the source

// Bytes whose beginning can be looked at before anybody reads them. What is handed in outlives it.
class HeadSource final : public ByteSource {
 public:
  // `bytes` counts what is read; nullptr: nobody counts.
  HeadSource(ByteSource* source, std::uint64_t* bytes) : source_(source), bytes_(bytes) {}
  // The first `size` bytes, or all there are. Before the first Read only.
  std::string_view Head(std::size_t size);
  std::size_t Read(char* buffer, std::size_t size) override;
  std::string error() const override { return source_->error(); }

 private:
  ByteSource* const source_;
  std::uint64_t* const bytes_;
  std::string head_;
  std::size_t used_ = 0;
};

// UTF-8 without a byte order mark, from UTF-8 or UTF-16 of either order, with or without a mark. Other bytes pass as they are. Names the
// encoding in `report`.
class Utf8Source final : public ByteSource {
 public:
  Utf8Source(HeadSource* source, LogReport* report);
  std::size_t Read(char* buffer, std::size_t size) override;
  std::string error() const override { return source_->error(); }

 private:
  HeadSource* const source_;
  enum class Encoding { kBytes, kUtf16Le, kUtf16Be } encoding_ = Encoding::kBytes;
  std::string wide_;    // half a character that waits for its other half, and what follows
  std::string ready_;   // UTF-8
  std::size_t used_ = 0;
};

bool IsUtf8(std::string_view text);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_BYTE_SOURCE_H_
