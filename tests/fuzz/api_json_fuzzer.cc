// Bodies of POST requests: JSON for either of the two calls.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/api_fixture.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static lossgauge::testing::FuzzedApi api;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  lossgauge::v1::AcknowledgeIncidentRequest acknowledge;
  if (lossgauge::api::FromJson(body, &acknowledge).ok()) api.Call(acknowledge);
  lossgauge::v1::ReportActionRequest report;
  if (lossgauge::api::FromJson(body, &report).ok()) api.Call(report);
  return 0;
}
