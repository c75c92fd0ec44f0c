// What senders may say to a daemon: the input is a program of a hostile sender or two, with items of its making and batches of any bytes, against the
// source, the book, the judges and an in-memory store of a real daemon. An honest sender is at work beside them: of its run nothing may be lost, added
// or refused, and pages and answers stay what clients can read.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "spdlog/spdlog.h"
#include "tests/fuzz/ingest_daemon.h"
#include "tests/fuzz/ingest_hostile_sender.h"

namespace fuzz = lossgauge::fuzz;

static constexpr std::size_t kMaxOperations = 200;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const bool quiet = [] {
    google::protobuf::SetLogHandler(nullptr);
    spdlog::set_level(spdlog::level::off);
    setenv("TMPDIR", "/dev/shm", 0);  // the store's: a disk would be most of the time
    return true;
  }();
  fuzz::Bytes in(data, size);
  fuzz::Daemon daemon;
  fuzz::Hostile first(&daemon, 'x'), second(&daemon, 'y');
  for (std::size_t i = 0; i < kMaxOperations && !in.empty(); ++i) {
    const std::uint8_t what = in.Byte();
    if (what < 16) {
      daemon.Cycle(what * 50);
    } else if (what < 32) {
      daemon.HonestStep();
    } else {
      (what % 4 == 0 ? second : first).Do(in);
    }
  }
  first.Flush(1);
  second.Flush(1);
  daemon.Check();
  return 0;
}
