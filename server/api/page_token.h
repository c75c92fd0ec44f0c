// Page tokens: where to go on, bound to the query they were given for. Opaque to clients, checked on return, valid across restarts.
#ifndef LOSSGAUGE_SERVER_API_PAGE_TOKEN_H_
#define LOSSGAUGE_SERVER_API_PAGE_TOKEN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/api/text.h"

namespace lossgauge::api {

struct PagePosition {
  std::uint64_t position = 0;  // sequence or offset after which to go on
  std::uint64_t anchor = 0;    // identifies the last item given, for lists that shift while they are read; 0 = none
};

// A page ends early rather than exceed what gRPC clients take by default (4 MiB); its token goes on from there.
inline constexpr std::size_t kMaxPageBytes = 3 << 20;

// Everything of a request that decides what a list holds, and in which order.
template <typename Request>
std::uint64_t QueryHash(Request request) {
  request.clear_page_size();
  request.clear_page_token();
  return StableHash(request.SerializeAsString(), StableHash(request.GetTypeName()));
}

// `query` is a hash over everything of the request but page_size and page_token.
std::string MakePageToken(std::uint64_t query, const PagePosition& position);

// The start for an empty token. INVALID_ARGUMENT for one that is damaged, of another query or of another version.
absl::StatusOr<PagePosition> ParsePageToken(const std::string& token_untrusted, std::uint64_t query);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_PAGE_TOKEN_H_
