#include "server/api/page_token.h"

#include <array>
#include <string_view>

#include "absl/strings/escaping.h"
#include "server/api/text.h"

namespace lossgauge::api {
namespace {

constexpr char kVersion = 1;
constexpr std::size_t kBodyBytes = 1 + 3 * 8;
constexpr std::size_t kTokenBytes = kBodyBytes + 8;

void Append(std::uint64_t value, std::string* bytes) {
  for (int shift = 0; shift < 64; shift += 8) *bytes += static_cast<char>(value >> shift);
}

std::uint64_t Read(std::string_view bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = (value << 8) | static_cast<unsigned char>(bytes[offset + static_cast<std::size_t>(i)]);
  return value;
}

}  // namespace

std::string MakePageToken(std::uint64_t query, const PagePosition& position) {
  std::string bytes(1, kVersion);
  Append(query, &bytes);
  Append(position.position, &bytes);
  Append(position.anchor, &bytes);
  Append(StableHash(bytes), &bytes);
  std::string token;
  absl::WebSafeBase64Escape(bytes, &token);
  return token;
}

absl::StatusOr<PagePosition> ParsePageToken(const std::string& token_untrusted, std::uint64_t query) {
  if (token_untrusted.empty()) return PagePosition{};
  std::string bytes;
  if (token_untrusted.size() > 64 || !absl::WebSafeBase64Unescape(token_untrusted, &bytes) || bytes.size() != kTokenBytes ||
      bytes[0] != kVersion || Read(bytes, kBodyBytes) != StableHash(std::string_view(bytes).substr(0, kBodyBytes))) {
    return absl::InvalidArgumentError(
        "page_token: not a token of this service; pass next_page_token of the page before as it is, or leave it out for the first page");
  }
  if (Read(bytes, 1) != query) {
    return absl::InvalidArgumentError(
        "page_token: given for another query; repeat the request that it came from with no other field changed, or leave it out");
  }
  return PagePosition{Read(bytes, 9), Read(bytes, 17)};
}

}  // namespace lossgauge::api
