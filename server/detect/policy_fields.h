// The table of a policy's numbers: names as in the file, bounds, and where they live.
#ifndef LOSSGAUGE_SERVER_DETECT_POLICY_FIELDS_H_
#define LOSSGAUGE_SERVER_DETECT_POLICY_FIELDS_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "server/detect/policy.h"
#include "server/state/policy_view.h"

namespace lossgauge::detect {

struct PolicyField {
  std::string_view section;
  std::string_view key;
  double Policy::*value;
  double low;
  double high;
  bool whole = false;
};

std::span<const PolicyField> PolicyFields();

// All of a policy for those who explain it, and back: what the view does not name keeps its default, and what this version does not know is counted.
std::shared_ptr<const state::PolicyView> ViewOf(const Policy& policy);
Policy PolicyOf(const state::PolicyView& view, std::size_t* unknown = nullptr);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_POLICY_FIELDS_H_
