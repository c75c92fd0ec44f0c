// What a run's judge was told, and when, as bytes that can be told again (journal_reader.h): `lossgaugectl replay` judges a bundle by them, bit for bit.
//
// A journal is a sequence of parts, one a transaction of the store. Some begin anew: they carry the policy and the judge's saved state, so that
// whatever lies before them can be dropped; the others go on where the part before ended. An entry is a word of its kind and its fields; records are kept
// whole, as the words in which they differ from the rank's record before. The bytes begin with a version: a reader refuses what it does not know.
#ifndef LOSSGAUGE_SERVER_STATE_JUDGE_JOURNAL_H_
#define LOSSGAUGE_SERVER_STATE_JUDGE_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/state/byte_codec.h"
#include "server/state/journal_producers.h"
#include "server/state/judge.h"

namespace lossgauge::state {

struct JournalOptions {
  bool on = false;
  std::size_t max_ranks = 256;  // of a step or a look at the producers; a run that has more keeps no journal
  // A part begins anew after so many bytes or so much time: what is dropped from the old end goes in such pieces.
  std::size_t piece_bytes = std::size_t{512} << 10;
  std::int64_t piece_ns = std::int64_t{3600} * 1'000'000'000;
};

struct JournalPart {
  bool begins = false;
  TimeNs time_ns = 0;  // when it was taken: every entry in it is older
  std::string bytes;
};

// Of a verdict, over all of its bits.
std::uint64_t VerdictHash(const Verdict& verdict);

// Hands on what a judge is told, and writes it down.
class JournaledJudge final : public RunJudge {
 public:
  JournaledJudge(std::unique_ptr<RunJudge> judge, const JournalOptions& options) : options_(options), judge_(std::move(judge)) {}

  void OnStep(const JoinedStep& step) override;
  void OnEvent(const ProducerEvent& event) override;
  void OnLoss(const LossReport& report) override;
  void OnPresence(const Presence& presence) override;
  void OnAction(const LedgerEntry& entry) override;
  bool Acknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement) override;
  void SetMode(const std::string& mode) override;
  void NameSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns) override;
  Verdict Evaluate(TimeNs now_ns) const override { return judge_->Evaluate(now_ns); }
  std::vector<Incident> Incidents() const override { return judge_->Incidents(); }
  std::vector<Incident> TakeChangedIncidents() override { return judge_->TakeChangedIncidents(); }
  Counters counters() const override { return judge_->counters(); }
  std::shared_ptr<const PolicyView> policy() const override { return judge_->policy(); }
  std::string Save() const override { return judge_->Save(); }
  absl::Status Restore(std::string_view bytes) override;

  // Another judge, with what the present one knows. False if it could not read that, and starts clean.
  bool Replace(std::unique_ptr<RunJudge> judge);
  // The run's verdict of this moment, after the incidents that changed were taken.
  void NoteVerdict(const Verdict& verdict);

  std::size_t bytes() const { return out_.size(); }
  // What was written down since the last part; empty bytes if nothing.
  JournalPart Take(TimeNs now_ns);
  // What was taken last did not get into the store: the next part begins anew.
  void Restart();

 private:
  bool Begin();  // false: nothing is to be written
  std::uint64_t Known(const std::shared_ptr<const ProducerInfo>& producer);
  void PutTime(TimeNs time_ns);
  void PutPolicy();
  void PutLiveness(const LivenessReport& report);
  void GiveUp();

  const JournalOptions options_;
  std::unique_ptr<RunJudge> judge_;
  ByteWriter out_;
  JournalProducers producers_;
  TimeNs last_time_ns_ = 0;
  std::uint64_t last_sequence_ = 0;
  bool has_begun_ = false;
  bool goes_on_ = false;          // the part to begin goes on where the last one ended
  bool part_begins_ = false;      // the part that is being written
  bool has_too_many_ = false;     // ranks
  std::size_t piece_bytes_ = 0;
  TimeNs piece_begin_ns_ = 0;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JUDGE_JOURNAL_H_
