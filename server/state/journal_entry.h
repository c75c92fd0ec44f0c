// What an entry of a judge's journal begins with: for its writer (judge_journal.cc) and its reader (journal_reader.cc) alone.
#ifndef LOSSGAUGE_SERVER_STATE_JOURNAL_ENTRY_H_
#define LOSSGAUGE_SERVER_STATE_JOURNAL_ENTRY_H_

#include <cstddef>
#include <cstdint>

namespace lossgauge::state::journal {

constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kMostProducers = 4096;  // of a piece

enum Kind : std::uint64_t {
  kBeginning = 1,
  kProducer = 2,
  kStep = 3,
  kEvent = 4,
  kLoss = 5,
  kPresence = 6,
  kAction = 7,
  kAcknowledgement = 8,
  kMode = 9,
  kSibling = 10,
  kPolicy = 11,
  kVerdict = 12,
};

}  // namespace lossgauge::state::journal

#endif  // LOSSGAUGE_SERVER_STATE_JOURNAL_ENTRY_H_
