// Calls for the archive of a post-mortem: the judge's journal, and the policies that judged.
#include <google/protobuf/util/time_util.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/api/api.h"
#include "server/api/convert_policy.h"
#include "server/api/page_token.h"
#include "server/api/requests.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

using google::protobuf::Timestamp;
using google::protobuf::util::TimeUtil;

constexpr std::size_t kMaxJournalPageBytes = 1 << 20;
constexpr int kMostVersions = 100;
constexpr std::size_t kMaxVersionBytes = 256;

// INVALID_ARGUMENT for what is no time.
absl::StatusOr<state::TimeNs> TimeOf(const Timestamp& time, const char* field) {
  constexpr std::int64_t kFurthest = std::numeric_limits<std::int64_t>::max() / 1'000'000'000;
  if (time.seconds() < 0 || time.seconds() >= kFurthest || time.nanos() < 0 || time.nanos() > 999'999'999) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": a time between 1970 and 2262 is expected"));
  }
  return time.seconds() * 1'000'000'000 + time.nanos();
}

}  // namespace

absl::StatusOr<v1::ListJournalResponse> Api::ListJournal(const v1::ListJournalRequest& request) const {
  const auto run = RequireKnownRun(*board_.Get(), history_.get(), request.run());
  if (!run.ok()) return run.status();
  const std::uint64_t query = QueryHash(request);
  const auto at = ParsePageToken(request.page_token(), query);
  if (!at.ok()) return at.status();
  absl::StatusOr<state::TimeNs> from = 0, to = std::numeric_limits<state::TimeNs>::max();
  if (request.has_first_time()) from = TimeOf(request.first_time(), "first_time");
  if (!from.ok()) return from.status();
  if (request.has_last_time()) to = TimeOf(request.last_time(), "last_time");
  if (!to.ok()) return to.status();
  v1::ListJournalResponse response;
  if (history_ == nullptr) return response;
  const auto page = history_->ReadJournal((*run)->run, static_cast<std::int64_t>(at->position), *from, *to, kMaxJournalPageBytes);
  if (!page.ok()) return page.status();
  for (const state::JournalRow& row : page->rows) {
    v1::JournalPart* part = response.add_parts();
    part->set_begins(row.begins);
    *part->mutable_time() = TimeUtil::NanosecondsToTimestamp(row.time_ns);
    part->set_data(row.data);
  }
  if (page->more) response.set_next_page_token(MakePageToken(query, {static_cast<std::uint64_t>(page->rows.back().id), 0}));
  return response;
}

absl::StatusOr<v1::ListPoliciesResponse> Api::ListPolicies(const v1::ListPoliciesRequest& request) const {
  const auto run = RequireKnownRun(*board_.Get(), history_.get(), request.run());
  if (!run.ok()) return run.status();
  if (request.versions_size() > kMostVersions) {
    return absl::InvalidArgumentError(absl::StrCat("versions: at most ", kMostVersions, " at a time, not ", request.versions_size()));
  }
  v1::ListPoliciesResponse response;
  for (const std::string& version : request.versions()) {
    if (absl::Status status = CheckText(version, "versions", kMaxVersionBytes, true); !status.ok()) return status;
    if (history_ == nullptr) continue;
    const auto kept = history_->ReadPolicies(version);
    if (!kept.ok()) return kept.status();
    for (const state::PolicyRow& row : *kept) {
      v1::KeptPolicy* policy = response.add_policies();
      ToMessage((*run)->run, *row.policy, policy->mutable_policy());
      *policy->mutable_first_used() = TimeUtil::NanosecondsToTimestamp(row.time_ns);
    }
  }
  return response;
}

}  // namespace lossgauge::api
