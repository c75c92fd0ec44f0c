#include "server/ctl/bundle_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/types.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {
namespace {

la_ssize_t WriteBlock(archive*, void* file, const void* bytes, std::size_t size) {
  const absl::Status status = static_cast<OutputFile*>(file)->Write({static_cast<const char*>(bytes), size});
  return status.ok() ? static_cast<la_ssize_t>(size) : -1;
}

}  // namespace

void BundleWriter::CloseArchive::operator()(archive* handle) const { archive_write_free(handle); }

BundleWriter::BundleWriter(std::string path, std::unique_ptr<OutputFile> file, absl::Time time)
    : path_(std::move(path)), file_(std::move(file)), time_(time), spool_(std::tmpfile()), archive_(archive_write_new()) {}

absl::StatusOr<BundleWriter> BundleWriter::Create(const std::string& path, absl::Time time) {
  auto file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  BundleWriter writer(path, std::make_unique<OutputFile>(*std::move(file)), time);
  if (writer.spool_ == nullptr) return absl::ErrnoToStatus(errno, "a temporary file");
  archive* handle = writer.archive_.get();
  archive_write_set_format_pax_restricted(handle);  // ustar, with the extension where a size asks for it
  archive_write_set_bytes_per_block(handle, 64 * 1024);
  archive_write_set_bytes_in_last_block(handle, 1);
  if (archive_write_open(handle, writer.file_.get(), nullptr, WriteBlock, nullptr) != ARCHIVE_OK) return writer.Failed("cannot be begun");
  return writer;
}

absl::Status BundleWriter::Failed(const std::string& what) const {
  const char* text = archive_error_string(archive_.get());
  return absl::DataLossError(absl::StrCat(Printable(path_), ": ", what, text == nullptr ? "" : ": ", text == nullptr ? "" : text));
}

absl::Status BundleWriter::Add(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), spool_.get()) == bytes.size()) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "the temporary file");
}

absl::Status BundleWriter::EndMember(const std::string& name) {
  const off_t size = ftello(spool_.get());
  if (size < 0 || std::fseek(spool_.get(), 0, SEEK_SET) != 0) return absl::ErrnoToStatus(errno, "the temporary file");
  const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(), archive_entry_free);
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_size(entry.get(), size);
  archive_entry_set_mtime(entry.get(), absl::ToUnixSeconds(time_), 0);
  if (archive_write_header(archive_.get(), entry.get()) != ARCHIVE_OK) return Failed(name);
  char buffer[64 * 1024];
  for (off_t left = size; left > 0;) {
    const std::size_t bytes = std::fread(buffer, 1, static_cast<std::size_t>(std::min<off_t>(left, sizeof buffer)), spool_.get());
    if (bytes == 0) return absl::ErrnoToStatus(errno, "the temporary file");
    if (archive_write_data(archive_.get(), buffer, bytes) != static_cast<la_ssize_t>(bytes)) return Failed(name);
    left -= static_cast<off_t>(bytes);
  }
  spool_.reset(std::tmpfile());
  return spool_ == nullptr ? absl::ErrnoToStatus(errno, "a temporary file") : absl::OkStatus();
}

absl::Status BundleWriter::Finish() {
  if (archive_write_close(archive_.get()) != ARCHIVE_OK) return Failed("cannot be finished");
  return file_->Keep();
}

}  // namespace lossgauge::ctl
