// Members of a tar archive, plain or compressed by gzip, one after the other. Knows nothing of what is in them. Beyond 16 MiB an archive may unpack
// to no more than 200 times what was read of it: then its content ends with an error.
#ifndef LOSSGAUGE_SERVER_REPLAY_BUNDLE_ARCHIVE_H_
#define LOSSGAUGE_SERVER_REPLAY_BUNDLE_ARCHIVE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/replay/byte_source.h"

struct archive;

namespace lossgauge::replay {

// Not thread-safe. Errors name the path.
class BundleArchive {
 public:
  // INVALID_ARGUMENT: not such an archive.
  static absl::StatusOr<BundleArchive> Open(const std::string& path);

  // The name of the next member that is a regular file; empty at the end. DATA_LOSS: the archive is damaged from here on. At most 1000 members
  // are looked at.
  absl::StatusOr<std::string> Next();
  // The content of the member, valid until the next call of Next.
  ByteSource* content() { return content_.get(); }

 private:
  struct Close {
    void operator()(archive* handle) const;
  };
  BundleArchive(std::string path, std::unique_ptr<archive, Close> handle);

  std::string path_;
  std::unique_ptr<archive, Close> handle_;
  std::unique_ptr<std::uint64_t> unpacked_;  // bytes, of all members; stays where it is
  std::unique_ptr<ByteSource> content_;
  int members_ = 0;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_BUNDLE_ARCHIVE_H_
