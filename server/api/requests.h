// Validation of requests. Every refusal names the field and the remedy.
#ifndef LOSSGAUGE_SERVER_API_REQUESTS_H_
#define LOSSGAUGE_SERVER_API_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lossgauge/v1/lossgauge.pb.h"
#include "server/state/snapshot.h"
#include "server/state/store.h"

namespace lossgauge::api {

inline constexpr int kMaxStepsPage = 10'000;
inline constexpr int kMaxListPage = 1'000;

// INVALID_ARGUMENT if empty, NOT_FOUND if unknown; names some runs that there are.
absl::StatusOr<std::shared_ptr<const state::RunSnapshot>> RequireRun(const state::Snapshot& snapshot, const std::string& run_untrusted);

// Likewise, but finds runs that only history knows, too: an empty snapshot then, which sends its readers to history. `history` may be null.
absl::StatusOr<std::shared_ptr<const state::RunSnapshot>> RequireKnownRun(const state::Snapshot& snapshot, state::HistoryReader* history,
                                                                          const std::string& run_untrusted);

// 0 means `default_size`.
absl::StatusOr<int> PageSize(std::int32_t page_size_untrusted, int default_size, int max_size);

// INVALID_ARGUMENT naming `field` if longer than `max_bytes`, not UTF-8, or empty where it must not be.
absl::Status CheckText(const std::string& text_untrusted, const char* field, std::size_t max_bytes, bool required);

absl::Status Check(const v1::ListStepsRequest& request);
absl::Status Check(const v1::CompareRunsRequest& request);
absl::Status Check(const v1::AcknowledgeIncidentRequest& request);
absl::Status Check(const v1::ReportActionRequest& request);
absl::Status Check(const v1::SetModeRequest& request);

}  // namespace lossgauge::api

#endif  // LOSSGAUGE_SERVER_API_REQUESTS_H_
