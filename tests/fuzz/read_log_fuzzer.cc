// Whatever the bytes of a log are, every reader ends, in bounded memory, and what it hands over keeps its promises.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/replay/read_log.h"
#include "tests/fuzz/checking_sink.h"

using lossgauge::replay::Check;
using lossgauge::replay::CheckingSink;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto source = lossgauge::replay::MakeMemorySource(bytes);
  CheckingSink sink;
  const auto report = lossgauge::replay::ReadLog(source.get(), &sink);
  if (report.ok()) Check(report->points == sink.points());
  return 0;
}
