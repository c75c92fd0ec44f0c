// Any text as a policy file: an error or policies within their bounds, never a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/detect/policy.h"
#include "server/detect/policy_fields.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using lossgauge::detect::PolicyFields;
  const auto result = lossgauge::detect::ParsePolicy(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!result.ok()) {
    if (result.status().message().empty()) std::abort();
    return 0;
  }
  for (const auto& field : PolicyFields()) {
    const double value = result->defaults.*field.value;
    if (!(value >= field.low && value <= field.high)) std::abort();
  }
  if (result->defaults.version.empty()) std::abort();
  return 0;
}
