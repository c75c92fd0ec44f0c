#include "server/main/logging.h"

#include <cstdio>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

#include "spdlog/formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace lossgauge::main {
namespace {

// One line stays one line, whatever a run is called.
void AppendEscaped(std::string_view text, bool for_json, spdlog::memory_buf_t* out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      const int size = std::snprintf(escape, sizeof escape, for_json ? "\\u%04x" : "\\x%02x", byte);
      out->append(escape, escape + size);
      continue;
    }
    if (for_json && (c == '"' || c == '\\')) out->push_back('\\');
    out->push_back(c);
  }
}

void Append(std::string_view text, spdlog::memory_buf_t* out) { out->append(text.data(), text.data() + text.size()); }

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(bool json) : json_(json) {}
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto since_epoch = message.time.time_since_epoch();
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
    const auto seconds = static_cast<std::time_t>(milliseconds / 1000);
    std::tm utc = {};
    gmtime_r(&seconds, &utc);
    char time[48];
    std::snprintf(time, sizeof time, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                  utc.tm_min, utc.tm_sec, static_cast<int>(milliseconds % 1000));
    const auto level_view = spdlog::level::to_string_view(message.level);
    const std::string_view level(level_view.data(), level_view.size());
    const std::string_view payload(message.payload.data(), message.payload.size());
    Append(json_ ? "{\"time\":\"" : "", &out);
    Append(time, &out);
    Append(json_ ? "\",\"level\":\"" : " ", &out);
    Append(level, &out);
    Append(json_ ? "\",\"message\":\"" : " ", &out);
    AppendEscaped(payload, json_, &out);
    Append(json_ ? "\"}\n" : "\n", &out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(json_); }

 private:
  const bool json_;
};

}  // namespace

void SetUpLogging(const std::string& format, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("lossgauged", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<LineFormatter>(format == "json"));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace lossgauge::main
