// Lists that lossgauged gives page by page.
#ifndef LOSSGAUGE_SERVER_CTL_PAGES_H_
#define LOSSGAUGE_SERVER_CTL_PAGES_H_

#include <string>

#include "server/ctl/connection.h"

namespace lossgauge::ctl {

template <class Request, class Response>
using ListCall = grpc::Status (v1::LossGauge::Stub::*)(grpc::ClientContext*, const Request&, Response*);

// Hands each page to `use`, until it says false, a call fails, or there are no more. A server that gives the same token again is taken to be at its end.
template <class Request, class Response, class Use>
grpc::Status ForEachPage(Connection& connection, ListCall<Request, Response> list, Request request, const Use& use) {
  while (true) {
    Response page;
    const auto context = connection.NewContext();
    const grpc::Status status = (connection.stub().*list)(context.get(), request, &page);
    if (!status.ok() || !use(page) || page.next_page_token().empty() || page.next_page_token() == request.page_token()) return status;
    request.set_page_token(page.next_page_token());
  }
}

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_PAGES_H_
