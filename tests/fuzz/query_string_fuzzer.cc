// Query strings of GET requests, page tokens among them: the first byte picks the call.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/web/query_string.h"
#include "tests/fuzz/api_fixture.h"

namespace {

template <typename Request>
void Try(lossgauge::testing::FuzzedApi& api, std::string_view target) {
  Request request;
  if (lossgauge::web::FillFromQuery(lossgauge::web::QueryOf(target), &request).ok()) api.Call(request);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lossgauge::v1;
  static lossgauge::testing::FuzzedApi api;
  if (size == 0) return 0;
  const std::string_view target(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0: Try<GetRunRequest>(api, target); break;
    case 1: Try<GetVerdictRequest>(api, target); break;
    case 2: Try<ListVerdictsRequest>(api, target); break;
    case 3: Try<ListStepsRequest>(api, target); break;
    case 4: Try<ListIncidentsRequest>(api, target); break;
    case 5: Try<WatchStepsRequest>(api, target); break;
    default: Try<WatchVerdictRequest>(api, target); break;
  }
  return 0;
}
