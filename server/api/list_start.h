// How an answer in pages begins: how many items, and behind which.
#ifndef LOSSGAUGE_SERVER_API_LIST_START_H_
#define LOSSGAUGE_SERVER_API_LIST_START_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/api/page_token.h"
#include "server/api/requests.h"

namespace lossgauge::api {

struct ListStart {
  int size = 0;
  std::uint64_t query = 0;  // for the token of the next page
  PagePosition at;
};

// Of a list that gives 100 items a page unless asked for another number. Errors name page_size or page_token.
template <class Request>
absl::StatusOr<ListStart> BeginList(const Request& request) {
  const absl::StatusOr<int> size = PageSize(request.page_size(), 100, kMaxListPage);
  if (!size.ok()) return size.status();
  const std::uint64_t query = QueryHash(request);
  const absl::StatusOr<PagePosition> at = ParsePageToken(request.page_token(), query);
  if (!at.ok()) return at.status();
  return ListStart{*size, query, *at};
}

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_LIST_START_H_
