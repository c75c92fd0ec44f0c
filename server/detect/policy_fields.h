// The table of a policy's numbers: names as in the file, bounds, and where they live.
#ifndef LOSSGAUGE_SERVER_DETECT_POLICY_FIELDS_H_
#define LOSSGAUGE_SERVER_DETECT_POLICY_FIELDS_H_

#include <span>
#include <string_view>

#include "server/detect/policy.h"

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

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_POLICY_FIELDS_H_
