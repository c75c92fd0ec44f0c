// Logs of lossgauged: one line a message on stderr, as text or as JSON objects.
#ifndef LOSSGAUGE_SERVER_MAIN_LOGGING_H_
#define LOSSGAUGE_SERVER_MAIN_LOGGING_H_

#include <string>

namespace lossgauge::main {

// `format`: "text" or "json"; `level`: "debug", "info", "warning" or "error". Call once, before any other thread logs.
void SetUpLogging(const std::string& format, const std::string& level);

}  // namespace lossgauge::main

#endif  // LOSSGAUGE_SERVER_MAIN_LOGGING_H_
