// What a judge says over a replay: each change of its verdict, and the life of each incident, with the place in the log.
#ifndef LOSSGAUGE_SERVER_REPLAY_REPLAY_RECORD_H_
#define LOSSGAUGE_SERVER_REPLAY_REPLAY_RECORD_H_

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "server/replay/observed_judge.h"
#include "server/replay/replay.h"

namespace lossgauge::replay {

class ReplayRecord final : public JudgeObserver {
 public:
  // `most_kept`: verdicts, and incidents; the others are counted.
  explicit ReplayRecord(std::size_t most_kept) : most_kept_(most_kept) {}

  void OnIncidents(const std::vector<state::Incident>& changed) override;
  void OnVerdict(const state::Verdict& verdict) override;

  Moment now;           // set by whoever replays
  bool at_end = false;  // what is said from here on is of the end, not of the log
  ReplayResult result;

 private:
  const std::size_t most_kept_;
  std::unordered_map<std::string, std::size_t> index_;
  std::unordered_set<std::string> left_out_;  // incidents that are open
  std::optional<state::Verdict> verdict_;
};

}  // namespace lossgauge::replay

#endif  // LOSSGAUGE_SERVER_REPLAY_REPLAY_RECORD_H_
