// Request bytes as they come over gRPC: the first byte picks the call, the rest is its message.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/api_fixture.h"

namespace {

template <typename Request>
void Try(lossgauge::testing::FuzzedApi& api, const std::uint8_t* data, std::size_t size) {
  Request request;
  if (request.ParseFromArray(data, static_cast<int>(size))) api.Call(request);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lossgauge::v1;
  static lossgauge::testing::FuzzedApi api;
  if (size == 0) return 0;
  const std::uint8_t call = data[0] % 14;
  ++data, --size;
  switch (call) {
    case 0: Try<ListRunsRequest>(api, data, size); break;
    case 1: Try<GetRunRequest>(api, data, size); break;
    case 2: Try<GetVerdictRequest>(api, data, size); break;
    case 3: Try<ListVerdictsRequest>(api, data, size); break;
    case 4: Try<ListStepsRequest>(api, data, size); break;
    case 5: Try<ListIncidentsRequest>(api, data, size); break;
    case 6: Try<WatchStepsRequest>(api, data, size); break;
    case 7: Try<WatchVerdictRequest>(api, data, size); break;
    case 8: Try<AcknowledgeIncidentRequest>(api, data, size); break;
    case 9: Try<ReportActionRequest>(api, data, size); break;
    case 10: Try<CompareRunsRequest>(api, data, size); break;
    case 11: Try<ExplainRequest>(api, data, size); break;
    case 12: Try<ListEventsRequest>(api, data, size); break;
    default: Try<GetPolicyRequest>(api, data, size); break;
  }
  return 0;
}
