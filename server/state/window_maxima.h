// Maxima over fixed windows of 10 s of lossgauged's clock: the running one and the six before it. Fixed windows, so that two scrapers see the
// same; not "since the last scrape".
#ifndef LOSSGAUGE_SERVER_STATE_WINDOW_MAXIMA_H_
#define LOSSGAUGE_SERVER_STATE_WINDOW_MAXIMA_H_

#include <array>

#include "server/state/snapshot.h"

namespace lossgauge::state {

class WindowTracker {
 public:
  // Values that are absent or not finite take no part: those are counted elsewhere and must not stick here for a minute.
  void Add(TimeNs time_ns, const WindowMaxima& values);
  WindowMaxima Maxima(TimeNs now_ns) const;

 private:
  static constexpr std::int64_t kWindowNs = 10'000'000'000;
  static constexpr std::size_t kWindows = 7;
  struct Window {
    std::int64_t number = -1;
    WindowMaxima maxima;
  };
  std::array<Window, kWindows> windows_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_WINDOW_MAXIMA_H_
