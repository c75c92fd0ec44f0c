#include "server/replay/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lossgauge::replay {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;

class FileSource final : public ByteSource {
 public:
  explicit FileSource(int fd) : fd_(fd) {}
  ~FileSource() override { close(fd_); }
  std::size_t Read(char* buffer, std::size_t size) override {
    for (;;) {
      const ssize_t got = read(fd_, buffer, size);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno == EINTR) continue;
      error_ = std::strerror(errno);
      return 0;
    }
  }
  std::string error() const override { return error_; }

 private:
  const int fd_;
  std::string error_;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::size_t Read(char* buffer, std::size_t size) override {
    const std::size_t count = std::min(size, bytes_.size());
    std::copy_n(bytes_.data(), count, buffer);
    bytes_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view bytes_;
};

void AppendUtf8(std::uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xc0 | (code >> 6)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else {
    out->push_back(static_cast<char>(0xe0 | (code >> 12)));
    out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3f)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  struct stat info{};
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
  }
  return std::unique_ptr<ByteSource>(std::make_unique<FileSource>(fd));
}

std::unique_ptr<ByteSource> MakeMemorySource(std::string_view bytes) { return std::make_unique<MemorySource>(bytes); }

std::string_view HeadSource::Head(std::size_t size) {
  while (head_.size() < size) {
    const std::size_t kept = head_.size();
    head_.resize(size);
    const std::size_t got = source_->Read(head_.data() + kept, size - kept);
    head_.resize(kept + got);
    if (bytes_ != nullptr) *bytes_ += got;
    if (got == 0) break;
  }
  return std::string_view(head_).substr(0, size);
}

std::size_t HeadSource::Read(char* buffer, std::size_t size) {
  if (used_ < head_.size()) {
    const std::size_t count = std::min(size, head_.size() - used_);
    std::copy_n(head_.data() + used_, count, buffer);
    used_ += count;
    return count;
  }
  const std::size_t got = source_->Read(buffer, size);
  if (bytes_ != nullptr) *bytes_ += got;
  return got;
}

Utf8Source::Utf8Source(HeadSource* source, LogReport* report) : source_(source) {
  const std::string_view head = source->Head(512);
  report->encoding = "utf-8";
  if (head.starts_with("\xef\xbb\xbf")) {
    char mark[3];
    for (std::size_t got = 0; got < sizeof mark;) got += source_->Read(mark + got, sizeof mark - got);
    return;
  }
  std::size_t zeros[2] = {0, 0};  // every other byte of ASCII in UTF-16
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i & 1] += head[i] == 0;
  const bool is_long = head.size() >= 16;
  if (head.starts_with("\xff\xfe") || (is_long && zeros[0] == 0 && zeros[1] * 10 > head.size() * 4)) {
    encoding_ = Encoding::kUtf16Le;
    report->encoding = "utf-16le";
  } else if (head.starts_with("\xfe\xff") || (is_long && zeros[1] == 0 && zeros[0] * 10 > head.size() * 4)) {
    encoding_ = Encoding::kUtf16Be;
    report->encoding = "utf-16be";
  }
}

std::size_t Utf8Source::Read(char* buffer, std::size_t size) {
  if (encoding_ == Encoding::kBytes) return source_->Read(buffer, size);
  while (used_ == ready_.size()) {
    ready_.clear();
    used_ = 0;
    const std::size_t kept = wide_.size();
    wide_.resize(kept + kChunkBytes);
    const std::size_t got = source_->Read(wide_.data() + kept, kChunkBytes);
    wide_.resize(kept + got);
    if (got == 0) return 0;
    std::size_t i = 0;
    for (; i + 1 < wide_.size(); i += 2) {
      const auto first = static_cast<unsigned char>(wide_[i]);
      const auto second = static_cast<unsigned char>(wide_[i + 1]);
      const std::uint32_t code = encoding_ == Encoding::kUtf16Le ? first | second << 8 : second | first << 8;
      if (code == 0xfeff) continue;  // byte order mark
      AppendUtf8(code >= 0xd800 && code < 0xe000 ? 0xfffd : code, &ready_);
    }
    wide_.erase(0, i);
  }
  const std::size_t count = std::min(size, ready_.size() - used_);
  std::copy_n(ready_.data() + used_, count, buffer);
  used_ += count;
  return count;
}

bool IsUtf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace lossgauge::replay
