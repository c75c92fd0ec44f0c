#include "server/detect/stall_locator.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/state/ring_names.h"

namespace lossgauge::detect {
namespace {

std::string Ranks(const std::vector<const state::LivenessReport*>& reports) {
  constexpr std::size_t kNamed = 8;
  std::string names;
  for (std::size_t i = 0; i < reports.size() && i < kNamed; ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", reports[i]->producer->layout.rank);
  }
  if (reports.size() > kNamed) absl::StrAppend(&names, " and ", reports.size() - kNamed, " more");
  return absl::StrCat(reports.size() == 1 ? "rank " : "ranks ", names);
}

std::string LastCall(const state::LivenessReport& report) {
  const std::string_view name = state::CallName(report.last_call);
  return absl::StrFormat("last call '%s' %.0f s ago", name.empty() ? "none" : name, static_cast<double>(report.last_call_age_ns) * 1e-9);
}

void NameOne(StallLocation& location, const std::vector<const state::LivenessReport*>& guilty) {
  if (guilty.size() == 1) location.rank = guilty[0]->producer->layout.rank;
}

}  // namespace

StallLocation LocateStall(const std::vector<const state::LivenessReport*>& reports) {
  StallLocation location;
  if (reports.empty()) return location;
  // What a rank has reached: it entered a step with its first loss call, or (jobs that only observe) handed one to publish.
  const auto reached = [](const state::LivenessReport* r) { return std::max(r->entered_step, r->enqueued_step); };
  std::int64_t front = -1;
  for (const auto* report : reports) front = std::max(front, reached(report));
  if (front < 0) return location;

  std::vector<const state::LivenessReport*> behind;      // never entered `front`, nothing pending
  std::vector<const state::LivenessReport*> device;      // handed over, not finished
  std::vector<const state::LivenessReport*> done;        // finished `front`
  std::vector<const state::LivenessReport*> inside;      // entered `front`, not handed over: in its forward, backward or a collective
  for (const auto* report : reports) {
    if (report->enqueued_step > report->published_step) {
      device.push_back(report);
    } else if (reached(report) < front) {
      behind.push_back(report);
    } else if (report->entered_step > report->enqueued_step) {
      inside.push_back(report);
    } else {
      done.push_back(report);
    }
  }
  location.step = front;
  if (!behind.empty()) {
    location.place = StallPlace::kHost;
    location.name = "host";
    NameOne(location, behind);
    location.words = absl::StrFormat("%s never entered step %d, which others have entered (%s): look at that host (data loading, a lock, a crash handler)",
                                     Ranks(behind), front, LastCall(*behind[0]));
    return location;
  }
  if (!device.empty() && device.size() < reports.size()) {
    location.place = StallPlace::kDevice;
    location.name = "device";
    location.step = device[0]->published_step + 1;
    NameOne(location, device);
    location.words = absl::StrFormat("the device of %s did not finish step %d, the others did: look at that device (a hung kernel, a copy)",
                                     Ranks(device), location.step);
    return location;
  }
  if (!device.empty()) {
    location.step = device[0]->published_step + 1;
    if (reports.size() > 1) {
      location.place = StallPlace::kCollective;
      location.name = "collective";
      location.words = absl::StrFormat("every rank handed step %d to its device and none finishes: a collective that waits for a peer, or the network",
                                       location.step);
    } else {
      location.place = StallPlace::kDevice;
      location.name = "device";
      NameOne(location, device);
      location.words = absl::StrFormat("step %d was handed to the device and is not finished", location.step);
    }
    return location;
  }
  if (!inside.empty() && inside.size() == reports.size() && reports.size() > 1) {
    location.place = StallPlace::kCollective;
    location.name = "collective";
    location.words = absl::StrFormat("every rank entered step %d and none ends it: a collective between the first loss call and publish", front);
    return location;
  }
  const auto& guilty = inside.empty() ? done : inside;
  location.place = StallPlace::kHost;
  location.name = "host";
  NameOne(location, guilty);
  location.words = inside.empty()
                       ? absl::StrFormat("every step handed over is finished and no rank enters step %d (%s): the hosts wait for something between "
                                         "two steps (data, a checkpoint, a barrier)", front + 1, LastCall(*guilty[0]))
                       : absl::StrFormat("%s entered step %d and did not end it (%s)", Ranks(guilty), front, LastCall(*guilty[0]));
  if (inside.empty()) location.step = front + 1;
  return location;
}

}  // namespace lossgauge::detect
