// The status page for a browser without JavaScript: runs with their verdicts and earlier ones as tables, as HTML that needs nothing but the style sheet.
#ifndef LOSSGAUGE_SERVER_WEB_PLAIN_PAGE_H_
#define LOSSGAUGE_SERVER_WEB_PLAIN_PAGE_H_

#include <string>

#include "lossgauge/v1/lossgauge.pb.h"

namespace lossgauge::web {

inline constexpr const char* kPlainPagePath = "/plain";

// Worst verdict first, ended runs last. It asks the browser to fetch it again every ten seconds. Names and reasons are untrusted: they come out as text.
// `history_read`: false where `runs` could not be told of the past.
std::string PlainPage(const v1::ListRunsResponse& runs, bool history_read);

}  // namespace lossgauge::web

#endif  // LOSSGAUGE_SERVER_WEB_PLAIN_PAGE_H_
