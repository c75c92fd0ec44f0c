// One ring file, opened and judged: read-only, no symbolic link, a regular file, header valid. Everything in it stays untrusted.
#ifndef LOSSGAUGE_SERVER_INGEST_RING_FILE_H_
#define LOSSGAUGE_SERVER_INGEST_RING_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "proto/lossgauge/ring/ring_abi.h"
#include "server/ingest/bus_guard.h"

namespace lossgauge::ingest {

struct RingFile {
  GuardedMapping mapping;
  lg_ring_identity identity{};  // a copy; validated
  const lg_ring_header* header() const { return static_cast<const lg_ring_header*>(mapping.data()); }
};

struct RingFileResult {
  std::unique_ptr<RingFile> file;  // null on failure
  bool is_pending = false;         // not an error: its producer is still at work on it, look again later
  std::string cause;               // a label: "not_ready", "bad_magic", "permission_denied", "not_a_file", "bad_layout", ...
  std::string message;             // one sentence for the log, with path, owner and mode where they matter
};

// `kind`: LG_RING_KIND_*, what the file's name announces.
RingFileResult OpenRingFile(const std::string& path, std::uint32_t kind);

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_RING_FILE_H_
