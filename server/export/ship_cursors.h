// How far each run has been sent, in a SQLite file of its own in the state directory: the drain thread's file is the drain thread's.
#ifndef LOSSGAUGE_SERVER_EXPORT_SHIP_CURSORS_H_
#define LOSSGAUGE_SERVER_EXPORT_SHIP_CURSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/records.h"

namespace lossgauge::export_ {

struct ShipCursor {
  std::uint64_t sent = 0;       // the receiver has taken, or refused, every step up to this sequence
  std::int64_t last_ms = 0;     // timestamp of the last of them
  std::uint64_t in_flight = 0;  // a request up to this sequence was begun, and its answer is not known; 0: none
  state::TimeNs updated_ns = 0;
};

// Used by one thread.
class ShipCursors {
 public:
  // `directory` "": in memory, nothing survives. A file that is damaged is begun anew, which is logged.
  static absl::StatusOr<std::unique_ptr<ShipCursors>> Open(const std::string& directory, const std::string& file_name);
  virtual ~ShipCursors() = default;

  // Of one receiver, by run.
  virtual absl::StatusOr<std::map<std::string, ShipCursor>> Load(const std::string& receiver) = 0;
  // In one transaction. It survives the death of the process at any moment; only a power cut may take the last ones.
  virtual absl::Status Save(const std::string& receiver, const std::map<std::string, ShipCursor>& cursors, const std::vector<std::string>& forget) = 0;
};

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_SHIP_CURSORS_H_
