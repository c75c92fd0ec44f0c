// What receivers, flags and secret files say: the first byte picks the reader.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/export/receiver_answer.h"
#include "server/export/receiver_url.h"
#include "server/transport/client_limiter.h"
#include "server/transport/token_file.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

void TryUrl(std::string_view text) {
  const auto url = lossgauge::export_::ParseReceiverUrl(text);
  if (!url.ok()) return;
  // What was understood says the same once more, and could break no request line.
  const std::string said = url->Text();
  const auto again = lossgauge::export_::ParseReceiverUrl(said);
  Require(again.ok() && again->Text() == said && again->tls == url->tls && again->port == url->port);
  Require(said.find_first_of(" \r\n\t") == std::string::npos && url->path.front() == '/');
}

void TryHeaders(std::string_view text) {
  const auto headers = lossgauge::export_::ParseHeaderLines(text);
  if (!headers.ok()) return;
  for (const auto& [name, value] : *headers) {
    Require(!name.empty() && !value.empty() && name.find_first_of(": \r\n") == std::string::npos && value.find_first_of("\r\n") == std::string::npos);
  }
}

void TryLabels(std::string_view text) {
  const auto labels = lossgauge::export_::ParseLabels(text);
  if (!labels.ok()) return;
  for (std::size_t i = 0; i < labels->size(); ++i) {
    Require(!(*labels)[i].second.empty() && (i == 0 || (*labels)[i - 1].first < (*labels)[i].first));
  }
}

void TryAnswer(std::string_view text) {
  if (text.size() < 2) return;
  const int status = static_cast<unsigned char>(text[0]) * 4 + static_cast<unsigned char>(text[1]);
  text.remove_prefix(2);
  const std::size_t half = text.size() / 2;
  const auto answer = lossgauge::export_::JudgeAnswer(status, text.substr(0, half), text.substr(half), 1'772'600'767'000'000'000);
  Require(answer.retry_after_ns >= 0 && answer.retry_after_ns <= std::int64_t{86'400} * 1'000'000'000);
  Require(answer.text.find_first_of("\r\n\x1b") == std::string::npos && answer.text.size() < 300);
}

void TryTokens(std::string_view text) {
  const auto tokens = lossgauge::transport::ParseTokens(text);
  if (!tokens.ok()) return;
  Require(!tokens->empty());
  for (const std::string& token : *tokens) Require(token.size() >= 16 && token.find_first_of(" \r\n") == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0: TryUrl(text); break;
    case 1: TryHeaders(text); break;
    case 2: TryLabels(text); break;
    case 3: TryAnswer(text); break;
    case 4: TryTokens(text); break;
    default: (void)lossgauge::transport::ClientOfPeer(text); break;
  }
  return 0;
}
