#include "server/export/receiver_answer.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace lossgauge::export_ {
namespace {

constexpr std::int64_t kDayNs = std::int64_t{86'400} * 1'000'000'000;
constexpr std::size_t kMaxText = 200;

// As Prometheus, Mimir, Thanos and VictoriaMetrics say it, in lower case. The order decides where several stand in a text.
struct Words {
  const char* words;
  state::ShipDrop reason;
};
constexpr std::array kWords = {
    Words{"out of bounds", state::ShipDrop::kOutOfWindow},       Words{"too old", state::ShipDrop::kOutOfWindow},
    Words{"timestamp-too-old", state::ShipDrop::kOutOfWindow},   Words{"too far in the future", state::ShipDrop::kOutOfWindow},
    Words{"too-far-in-future", state::ShipDrop::kOutOfWindow},   Words{"out of order", state::ShipDrop::kOutOfOrder},
    Words{"out-of-order", state::ShipDrop::kOutOfOrder},         Words{"duplicate sample", state::ShipDrop::kOutOfOrder},
    Words{"duplicate-timestamp", state::ShipDrop::kOutOfOrder},
};

state::ShipDrop ReasonOf(std::string_view body) {
  const std::string lower = absl::AsciiStrToLower(std::string(body.substr(0, 4096)));
  for (const Words& one : kWords) {
    if (lower.find(one.words) != std::string::npos) return one.reason;
  }
  return state::ShipDrop::kRefused;
}

std::string Printable(std::string_view text) {
  std::string printable;
  for (const char c : text.substr(0, kMaxText)) printable.push_back(c >= 0x20 && c < 0x7f ? c : ' ');
  while (!printable.empty() && printable.back() == ' ') printable.pop_back();
  return printable;
}

}  // namespace

std::optional<std::int64_t> ParseRetryAfter(std::string_view text_untrusted, state::TimeNs now_ns) {
  if (text_untrusted.empty() || text_untrusted.size() > 64) return std::nullopt;
  if (text_untrusted.find_first_not_of("0123456789") == std::string_view::npos) {
    std::int64_t seconds = 0;
    for (const char c : text_untrusted) seconds = std::min<std::int64_t>(seconds * 10 + (c - '0'), 86'400);
    return seconds * 1'000'000'000;
  }
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", std::string(text_untrusted), absl::UTCTimeZone(), &time, &error)) return std::nullopt;
  if (time == absl::InfinitePast() || time == absl::InfiniteFuture()) return std::nullopt;  // words that Abseil takes for times
  const absl::Duration wait = std::clamp(time - absl::FromUnixNanos(now_ns), absl::ZeroDuration(), absl::Nanoseconds(kDayNs));
  return absl::ToInt64Nanoseconds(wait);
}

SinkAnswer JudgeAnswer(int status, std::string_view retry_after_untrusted, std::string_view body_untrusted, state::TimeNs now_ns) {
  SinkAnswer answer;
  answer.text = absl::StrCat("HTTP ", status, " ", Printable(body_untrusted));
  if (status >= 200 && status <= 299) {
    answer.result = state::ShipResult::kTaken;
  } else if (status == 429 || (status >= 502 && status <= 504)) {
    answer.result = state::ShipResult::kBusy;
    answer.retry_after_ns = ParseRetryAfter(retry_after_untrusted, now_ns).value_or(0);
  } else if (status >= 500 && status <= 599) {
    answer.result = state::ShipResult::kFailed;
  } else {
    answer.result = state::ShipResult::kRefused;
    answer.reason = ReasonOf(body_untrusted);
  }
  return answer;
}

}  // namespace lossgauge::export_
