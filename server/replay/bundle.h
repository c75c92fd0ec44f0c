// A bundle of `lossgaugectl bundle`, read back: its steps and events as points of a log, and the policy that they were judged by.
//
// A tar archive. Its first member is MANIFEST.json ("format": "lossgauge-bundle-1"); policy.yaml, events.jsonl and steps.jsonl are read here, too, in
// whatever order they stand; everything else in it is for people. Untrusted: each member is read as a stream; lines, events and the policy are
// bounded, and so is what a compressed one unpacks to.
#ifndef LOSSGAUGE_SERVER_REPLAY_BUNDLE_H_
#define LOSSGAUGE_SERVER_REPLAY_BUNDLE_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/replay/log_point.h"

namespace lossgauge::replay {

inline constexpr char kBundleFormat[] = "lossgauge-bundle-1";

// Whether the file is a tar archive that begins with such a manifest; false for whatever cannot be read.
bool IsBundle(const std::string& path);

// As ReadLogFile. Events go to `sink` before the first step that was received after them, those of an attempt not before its first step. The report's
// notes say what of the run's verdicts no bundle can give again.
absl::StatusOr<LogReport> ReadBundle(const std::string& path, LogSink* sink);

// Text of its policy file; empty if it has none. INVALID_ARGUMENT beyond 1 MiB.
absl::StatusOr<std::string> ReadBundlePolicy(const std::string& path);

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_BUNDLE_H_
