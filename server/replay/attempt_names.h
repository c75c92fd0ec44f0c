// Names of attempts, each once: a log may come back to a name, or have none.
#ifndef LOSSGAUGE_SERVER_REPLAY_ATTEMPT_NAMES_H_
#define LOSSGAUGE_SERVER_REPLAY_ATTEMPT_NAMES_H_

#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

// Whoever names the attempts of the same points by one of these comes to the same names.
class AttemptNames {
 public:
  // For the attempt that begins with `point`: as the log calls it, else its number. A name that has been given is told apart by the number.
  std::string Name(const LogPoint& point) {
    const std::string number = absl::StrCat(point.attempt);
    std::string name = point.attempt_name.empty() ? number : point.attempt_name;
    while (!given_.insert(name).second) absl::StrAppend(&name, "#", number);
    return name;
  }
  std::size_t size() const { return given_.size(); }

 private:
  std::unordered_set<std::string> given_;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_ATTEMPT_NAMES_H_
