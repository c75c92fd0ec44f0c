#include "server/replay/bundle_archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lossgauge::replay {
namespace {

constexpr int kMaxMembers = 1000;
constexpr std::size_t kBlockBytes = 64 * 1024;

std::string ErrorOf(archive* handle) {
  const char* text = archive_error_string(handle);
  return text == nullptr ? "unknown error" : text;
}

class Content final : public ByteSource {
 public:
  explicit Content(archive* handle) : handle_(handle) {}
  std::size_t Read(char* buffer, std::size_t size) override {
    if (!error_.empty()) return 0;
    const la_ssize_t bytes = archive_read_data(handle_, buffer, size);
    if (bytes < 0) error_ = ErrorOf(handle_);
    return bytes < 0 ? 0 : static_cast<std::size_t>(bytes);
  }
  std::string error() const override { return error_; }

 private:
  archive* const handle_;
  std::string error_;
};

}  // namespace

void BundleArchive::Close::operator()(archive* handle) const { archive_read_free(handle); }

BundleArchive::BundleArchive(std::string path, std::unique_ptr<archive, Close> handle)
    : path_(std::move(path)), handle_(std::move(handle)), content_(std::make_unique<Content>(handle_.get())) {}

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
    archive_entry* entry = nullptr;
    const int code = archive_read_next_header(handle_.get(), &entry);
    if (code == ARCHIVE_EOF) return std::string();
    if (code < ARCHIVE_WARN) return absl::DataLossError(absl::StrCat(path_, ": ", ErrorOf(handle_.get())));
    content_ = std::make_unique<Content>(handle_.get());
    const char* name = archive_entry_pathname(entry);
    if (archive_entry_filetype(entry) == AE_IFREG && name != nullptr && *name != '\0') return std::string(name);
  }
  return absl::DataLossError(absl::StrCat(path_, ": more than ", kMaxMembers, " members"));
}

}  // namespace lossgauge::replay
