// What an answer of a remote-write receiver means. Pure: the receiver is not trusted any more than a client.
#ifndef LOSSGAUGE_SERVER_EXPORT_RECEIVER_ANSWER_H_
#define LOSSGAUGE_SERVER_EXPORT_RECEIVER_ANSWER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/export/step_sink.h"
#include "server/state/records.h"

namespace lossgauge::export_ {

// Retry-After: seconds, or a date of HTTP. Nanoseconds from `now_ns`, not negative, a day at most; nullopt: it is neither.
std::optional<std::int64_t> ParseRetryAfter(std::string_view text_untrusted, state::TimeNs now_ns);

// 2xx: taken. 429, 502, 503, 504: busy. Other 5xx: failed. Everything else, redirects included: refused, with the reason that the body's words give.
// Fills everything but `samples`.
SinkAnswer JudgeAnswer(int status, std::string_view retry_after_untrusted, std::string_view body_untrusted, state::TimeNs now_ns);

}  // namespace lossgauge::export_

#endif  // LOSSGAUGE_SERVER_EXPORT_RECEIVER_ANSWER_H_
