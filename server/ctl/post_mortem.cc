#include "server/ctl/post_mortem.h"

#include <unordered_set>
#include <utility>

#include "server/ctl/pages.h"

namespace lossgauge::ctl {
namespace {

// Not there at all is nothing to report: the bundle says what it has.
grpc::Status UnlessUnknown(grpc::Status status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED ? grpc::Status::OK : std::move(status);
}

}  // namespace

PostMortem::PostMortem(const Connection& connection) : connection_(connection) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetUserAgentPrefix("lossgaugectl");
  stub_ = v1::PostMortem::NewStub(grpc::CreateCustomChannel(connection.address(), grpc::InsecureChannelCredentials(), arguments));
}

grpc::Status PostMortem::Journal(const std::string& run, const TimeSpan& span, const std::function<bool(const v1::JournalPart& part)>& use) {
  v1::ListJournalRequest request;
  request.set_run(run);
  if (span.first) *request.mutable_first_time() = *span.first;
  if (span.last) *request.mutable_last_time() = *span.last;
  std::unordered_set<std::string> tokens = {""};
  int empty_pages = 0;
  while (true) {
    v1::ListJournalResponse page;
    const auto context = connection_.NewContext();
    const grpc::Status status = stub_->ListJournal(context.get(), request, &page);
    if (!status.ok()) return UnlessUnknown(status);
    for (const v1::JournalPart& part : page.parts()) {
      if (!use(part)) return grpc::Status::OK;
    }
    if (page.next_page_token().empty()) return grpc::Status::OK;
    empty_pages = page.parts().empty() ? empty_pages + 1 : 0;
    if (!tokens.insert(page.next_page_token()).second || empty_pages > kMostEmptyPages) return {grpc::StatusCode::DATA_LOSS, "the journal has no end"};
    request.set_page_token(page.next_page_token());
  }
}

grpc::Status PostMortem::Policies(const std::string& run, const std::set<std::string>& versions, std::vector<v1::KeptPolicy>* out) {
  if (versions.empty()) return grpc::Status::OK;
  v1::ListPoliciesRequest request;
  request.set_run(run);
  for (const std::string& version : versions) request.add_versions(version);
  v1::ListPoliciesResponse response;
  const auto context = connection_.NewContext();
  const grpc::Status status = stub_->ListPolicies(context.get(), request, &response);
  for (v1::KeptPolicy& policy : *response.mutable_policies()) out->push_back(std::move(policy));
  return UnlessUnknown(status);
}

}  // namespace lossgauge::ctl
