// A bundle of `lossgaugectl bundle`, read back: its steps and events as points of a log, and the policy that they were judged by.
//
// `journal` holds what the judge was told; journal_replay.h judges by that. Steps alone are those over ranks.
//
// A tar archive. Its first member is MANIFEST.json ("format": "lossgauge-bundle-1"); policy.yaml, events.jsonl and steps.jsonl are read here, too, in
// whatever order they stand; everything else in it is for people. Untrusted: each member is read as a stream; lines, events and the policy are
// bounded, and so is what a compressed one unpacks to.
#ifndef LOSSGAUGE_SERVER_REPLAY_BUNDLE_H_
#define LOSSGAUGE_SERVER_REPLAY_BUNDLE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

inline constexpr char kBundleFormat[] = "lossgauge-bundle-1";

// The member with the journal: this line, then each part as its size and its checksum, 8 bytes each, little-endian, and its bytes
// (server/state/judge_journal.h).
inline constexpr char kJournalMember[] = "journal";
inline constexpr char kJournalLine[] = "lossgauge-journal-1\n";

// Whether the file is a tar archive that begins with such a manifest; false for whatever cannot be read.
bool IsBundle(const std::string& path);

// As ReadLogFile. Events go to `sink` before the first step that was received after them, those of an attempt not before its first step. The report's
// notes say what of the run's verdicts no bundle can give again.
absl::StatusOr<LogReport> ReadBundle(const std::string& path, LogSink* sink);

// Text of its policy file; empty if it has none. INVALID_ARGUMENT beyond 1 MiB.
absl::StatusOr<std::string> ReadBundlePolicy(const std::string& path);

std::uint64_t JournalChecksum(std::string_view part);

// Name of the run that it is of.
absl::StatusOr<std::string> ReadBundleRun(const std::string& path);

// Hands on the journal's parts until `use` says false; none if there is no journal. DATA_LOSS: it is damaged, or a part is larger than 64 MiB.
absl::Status ReadBundleJournal(const std::string& path, const std::function<bool(std::string_view part)>& use);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_BUNDLE_H_
