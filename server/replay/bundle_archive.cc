#include "server/replay/bundle_archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lossgauge::replay {
namespace {

constexpr int kMaxMembers = 1000;
constexpr std::size_t kBlockBytes = 64 * 1024;
constexpr std::size_t kReadBytes = 4 * 1024;  // as much is lost where an archive breaks off
// Lines of numbers shrink by ten; what is more than this is meant to keep its reader busy.
constexpr std::uint64_t kMostExpansion = 200;
constexpr std::uint64_t kFreeBytes = std::uint64_t{16} << 20;

std::string ErrorOf(archive* handle) {
  const char* text = archive_error_string(handle);
  return text == nullptr ? "unknown error" : text;
}

class Content final : public ByteSource {
 public:
  // `unpacked` counts over all members and outlives it.
  Content(archive* handle, std::uint64_t* unpacked) : handle_(handle), unpacked_(*unpacked) {}
  std::size_t Read(char* buffer, std::size_t size) override {
    if (!error_.empty()) return 0;
    const la_ssize_t bytes = archive_read_data(handle_, buffer, std::min(size, kReadBytes));
    if (bytes < 0) {
      error_ = ErrorOf(handle_);
      return 0;
    }
    unpacked_ += static_cast<std::uint64_t>(bytes);
    const auto packed = static_cast<std::uint64_t>(std::max<la_int64_t>(0, archive_filter_bytes(handle_, -1)));
    if (unpacked_ <= kFreeBytes || unpacked_ / kMostExpansion <= packed) return static_cast<std::size_t>(bytes);
    error_ = absl::StrCat("unpacks to more than ", kMostExpansion, " times its size");
    return 0;
  }
  std::string error() const override { return error_; }

 private:
  archive* const handle_;
  std::uint64_t& unpacked_;
  std::string error_;
};

}  // namespace

void BundleArchive::Close::operator()(archive* handle) const { archive_read_free(handle); }

BundleArchive::BundleArchive(std::string path, std::unique_ptr<archive, Close> handle)
    : path_(std::move(path)),
      handle_(std::move(handle)),
      unpacked_(std::make_unique<std::uint64_t>(0)),
      content_(std::make_unique<Content>(handle_.get(), unpacked_.get())) {}

absl::StatusOr<BundleArchive> BundleArchive::Open(const std::string& path) {
  std::unique_ptr<archive, Close> handle(archive_read_new());
  archive_read_support_format_tar(handle.get());
  archive_read_support_filter_gzip(handle.get());
  if (archive_read_open_filename(handle.get(), path.c_str(), kBlockBytes) != ARCHIVE_OK) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", ErrorOf(handle.get())));
  }
  return BundleArchive(path, std::move(handle));
}

absl::StatusOr<std::string> BundleArchive::Next() {
  while (++members_ <= kMaxMembers) {
    if (members_ > 1) {  // left to libarchive, the rest of a member would be unpacked without a bound
      char unused[16 * 1024];
      while (content_->Read(unused, sizeof unused) > 0) {
      }
      if (const std::string error = content_->error(); !error.empty()) return absl::DataLossError(absl::StrCat(path_, ": ", error));
    }
    archive_entry* entry = nullptr;
    const int code = archive_read_next_header(handle_.get(), &entry);
    if (code == ARCHIVE_EOF) return std::string();
    if (code < ARCHIVE_WARN) return absl::DataLossError(absl::StrCat(path_, ": ", ErrorOf(handle_.get())));
    content_ = std::make_unique<Content>(handle_.get(), unpacked_.get());
    const char* name = archive_entry_pathname(entry);
    if (archive_entry_filetype(entry) == AE_IFREG && name != nullptr && *name != '\0') return std::string(name);
  }
  return absl::DataLossError(absl::StrCat(path_, ": more than ", kMaxMembers, " members"));
}

}  // namespace lossgauge::replay
