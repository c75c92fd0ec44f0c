// A tar archive, member by member. Members are spooled, because a tar member says its size before its bytes.
#ifndef LOSSGAUGE_SERVER_CTL_BUNDLE_WRITER_H_
#define LOSSGAUGE_SERVER_CTL_BUNDLE_WRITER_H_

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/ctl/output_file.h"

struct archive;

namespace lossgauge::ctl {

class BundleWriter {
 public:
  // Members carry `time`. The file appears with Finish. Errors name the path.
  static absl::StatusOr<BundleWriter> Create(const std::string& path, absl::Time time);

  // Bytes of the next member.
  absl::Status Add(std::string_view bytes);
  // Ends the member and gives it its name; the next begins.
  absl::Status EndMember(const std::string& name);
  absl::Status Finish();

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  struct CloseArchive {
    void operator()(archive* handle) const;
  };
  BundleWriter(std::string path, std::unique_ptr<OutputFile> file, absl::Time time);
  absl::Status Failed(const std::string& what) const;

  std::string path_;
  std::unique_ptr<OutputFile> file_;  // stays where it is: the archive writes into it
  absl::Time time_;
  std::unique_ptr<std::FILE, CloseFile> spool_;
  std::unique_ptr<archive, CloseArchive> archive_;
};

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_BUNDLE_WRITER_H_
