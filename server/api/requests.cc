#include "server/api/requests.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxCommentBytes = 4096;
constexpr std::size_t kRunsNamedInErrors = 5;

std::string KnownRuns(const state::Snapshot& snapshot) {
  if (snapshot.runs.empty()) return "no run has been seen yet; start one with its ring directory watched by this lossgauged";
  std::string text = "known: ";
  for (std::size_t i = 0; i < snapshot.runs.size() && i < kRunsNamedInErrors; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", Quoted(snapshot.runs[i]->run, 60));
  }
  if (snapshot.runs.size() > kRunsNamedInErrors) absl::StrAppend(&text, " and ", snapshot.runs.size() - kRunsNamedInErrors, " more");
  return absl::StrCat(text, " (ListRuns gives all)");
}

template <class Request>
absl::Status CheckRange(const Request& request) {
  if (!request.has_first_step() || !request.has_last_step() || request.first_step() <= request.last_step()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("first_step: ", request.first_step(), " is beyond last_step ", request.last_step(), "; exchange them"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const state::RunSnapshot>> RequireRun(const state::Snapshot& snapshot, const std::string& run_untrusted) {
  if (!IsValidUtf8(run_untrusted)) return absl::InvalidArgumentError("run: not valid UTF-8; take the name as ListRuns gives it");
  if (auto run = state::FindRun(snapshot, run_untrusted)) return run;
  if (run_untrusted.empty()) return absl::InvalidArgumentError(absl::StrCat("run: missing; name one. ", KnownRuns(snapshot)));
  return absl::NotFoundError(absl::StrCat("run: no run ", Quoted(run_untrusted), "; ", KnownRuns(snapshot)));
}

absl::StatusOr<std::shared_ptr<const state::RunSnapshot>> RequireKnownRun(const state::Snapshot& snapshot, state::HistoryReader* history,
                                                                          const std::string& run_untrusted) {
  auto live = RequireRun(snapshot, run_untrusted);
  if (history == nullptr || live.status().code() != absl::StatusCode::kNotFound) return live;
  const auto stored = history->FindRun(run_untrusted);
  if (!stored.ok()) return stored.status();
  if (!stored->has_value()) return live;
  auto past = std::make_shared<state::RunSnapshot>();
  past->run = (*stored)->run;
  past->next_sequence = std::numeric_limits<std::uint64_t>::max();
  return past;
}

absl::StatusOr<int> PageSize(std::int32_t page_size_untrusted, int default_size, int max_size) {
  if (page_size_untrusted == 0) return default_size;
  if (page_size_untrusted < 0 || page_size_untrusted > max_size) {
    return absl::InvalidArgumentError(absl::StrCat("page_size: ", page_size_untrusted, " is out of range; give 1 to ", max_size,
                                                   ", or leave it out for ", default_size));
  }
  return page_size_untrusted;
}

absl::Status CheckText(const std::string& text_untrusted, const char* field, std::size_t max_bytes, bool required) {
  if (required && text_untrusted.empty()) return absl::InvalidArgumentError(absl::StrCat(field, ": missing"));
  if (text_untrusted.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", text_untrusted.size(), " bytes are too long; give at most ", max_bytes));
  }
  if (!IsValidUtf8(text_untrusted)) return absl::InvalidArgumentError(absl::StrCat(field, ": not valid UTF-8"));
  return absl::OkStatus();
}

absl::Status Check(const v1::ListStepsRequest& request) {
  if (absl::Status status = CheckText(request.attempt(), "attempt", kMaxNameBytes, false); !status.ok()) return status;
  if (absl::Status status = CheckRange(request); !status.ok()) return status;
  if (request.tail() < 0 || request.tail() > kMaxStepsPage) {
    return absl::InvalidArgumentError(absl::StrCat("tail: ", request.tail(), " is out of range; give 1 to ", kMaxStepsPage, ", or 0 for none"));
  }
  return absl::OkStatus();
}

absl::Status Check(const v1::CompareRunsRequest& request) {
  if (absl::Status status = CheckText(request.attempt_a(), "attempt_a", kMaxNameBytes, false); !status.ok()) return status;
  if (absl::Status status = CheckText(request.attempt_b(), "attempt_b", kMaxNameBytes, false); !status.ok()) return status;
  if (request.a() == request.b() && request.attempt_a() == request.attempt_b() && !request.a().empty()) {
    return absl::InvalidArgumentError("b: the same as a; name another run, or other attempts of this one");
  }
  return CheckRange(request);
}

absl::Status Check(const v1::AcknowledgeIncidentRequest& request) {
  if (request.id().empty()) return absl::InvalidArgumentError("id: missing; ListIncidents gives the id of each incident");
  if (absl::Status status = CheckText(request.id(), "id", kMaxNameBytes, true); !status.ok()) return status;
  if (request.by().empty()) return absl::InvalidArgumentError("by: missing; say who acknowledges, for those who read it later");
  if (absl::Status status = CheckText(request.by(), "by", kMaxNameBytes, true); !status.ok()) return status;
  return CheckText(request.comment(), "comment", kMaxCommentBytes, false);
}

absl::Status Check(const v1::ReportActionRequest& request) {
  if (request.action() == v1::ACTION_UNSPECIFIED || !v1::Action_IsValid(request.action()) || request.action() == v1::UNKNOWN) {
    return absl::InvalidArgumentError(
        absl::StrCat("action: ", static_cast<int>(request.action()), " is not something a scheduler does; give CONTINUE, WATCH, RESTART or HALT"));
  }
  if (request.actor().empty()) return absl::InvalidArgumentError("actor: missing; say what acted, for the ledger");
  if (absl::Status status = CheckText(request.actor(), "actor", kMaxNameBytes, true); !status.ok()) return status;
  if (absl::Status status = CheckText(request.attempt(), "attempt", kMaxNameBytes, false); !status.ok()) return status;
  return CheckText(request.comment(), "comment", kMaxCommentBytes, false);
}

absl::Status Check(const v1::SetModeRequest& request) {
  if (request.mode() != "advise" && request.mode() != "shadow" && request.mode() != "policy") {
    return absl::InvalidArgumentError(absl::StrCat("mode: ", Quoted(request.mode(), 40), " is none; give advise, shadow or policy"));
  }
  if (request.by().empty()) return absl::InvalidArgumentError("by: missing; say who sets it, for the log");
  return CheckText(request.by(), "by", kMaxNameBytes, true);
}

}  // namespace lossgauge::api
