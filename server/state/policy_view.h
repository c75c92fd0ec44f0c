// The thresholds that a run is judged by, as whoever explains a verdict needs them: names and numbers, no rules.
#ifndef LOSSGAUGE_SERVER_STATE_POLICY_VIEW_H_
#define LOSSGAUGE_SERVER_STATE_POLICY_VIEW_H_

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lossgauge::state {

struct PolicyView {
  struct Threshold {
    std::string section;  // "loss"
    std::string key;      // "close_steps": its unit is part of it
    double value = 0;
  };
  std::string version;
  std::string mode;
  std::vector<Threshold> thresholds;  // of a section, one after the other

  std::optional<double> Value(std::string_view section, std::string_view key) const {
    const auto found = std::find_if(thresholds.begin(), thresholds.end(),
                                    [&](const Threshold& one) { return one.section == section && one.key == key; });
    return found == thresholds.end() ? std::nullopt : std::optional(found->value);
  }
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_POLICY_VIEW_H_
