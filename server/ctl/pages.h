// Lists that lossgauged gives page by page.
#ifndef LOSSGAUGE_SERVER_CTL_PAGES_H_
#define LOSSGAUGE_SERVER_CTL_PAGES_H_

#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "server/ctl/connection.h"

namespace lossgauge::ctl {

template <class Request, class Response>
using ListCall = grpc::Status (v1::LossGauge::Stub::*)(grpc::ClientContext*, const Request&, Response*);

// In a row. lossgauged skips what does not fit the question, page by page.
inline constexpr int kMostEmptyPages = 1'000;

template <class Response>
bool IsEmpty(const Response& page) {
  Response token_only;
  token_only.set_next_page_token(page.next_page_token());
  return page.ByteSizeLong() == token_only.ByteSizeLong();
}

// Hands each page to `use`, until it says false, a call fails, or there are no more. DATA_LOSS for a server whose pages have no end: a token comes
// back that was there before, or page after page is empty.
template <class Request, class Response, class Use>
grpc::Status ForEachPage(Connection& connection, ListCall<Request, Response> list, Request request, const Use& use) {
  std::unordered_set<std::string> tokens = {request.page_token()};
  int empty_pages = 0;
  while (true) {
    Response page;
    const auto context = connection.NewContext();
    const grpc::Status status = (connection.stub().*list)(context.get(), request, &page);
    if (!status.ok() || !use(page) || page.next_page_token().empty()) return status;
    if (!tokens.insert(page.next_page_token()).second) return {grpc::StatusCode::DATA_LOSS, "the list has no end: the same page twice"};
    empty_pages = IsEmpty(page) ? empty_pages + 1 : 0;
    if (empty_pages > kMostEmptyPages) return {grpc::StatusCode::DATA_LOSS, absl::StrCat("the list has no end: ", empty_pages, " empty pages")};
    request.set_page_token(page.next_page_token());
  }
}

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_PAGES_H_
