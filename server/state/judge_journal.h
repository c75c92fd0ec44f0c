// What a run's judge was told, and when, as bytes that can be told again: `lossgaugectl replay` judges a bundle by them, bit for bit.
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

// Where a piece begins.
struct JournalBeginning {
  bool goes_on = false;  // nothing was left out since the part before it
  PolicyView policy;
  std::string judge;  // RunJudge::Save
};

class JournalSink {
 public:
  virtual ~JournalSink() = default;
  virtual void OnBeginning(const JournalBeginning& beginning) = 0;
  virtual void OnPolicy(const PolicyView& policy) = 0;
  virtual void OnStep(const JoinedStep& step) = 0;
  virtual void OnEvent(const ProducerEvent& event) = 0;
  virtual void OnLoss(const LossReport& report) = 0;
  virtual void OnPresence(const Presence& presence) = 0;
  virtual void OnAction(const LedgerEntry& entry) = 0;
  virtual void OnAcknowledge(const std::string& incident_id, const Acknowledgement& acknowledgement) = 0;
  virtual void OnMode(const std::string& mode) = 0;
  virtual void OnSibling(const std::string& incident_id, const std::string& sibling, TimeNs now_ns) = 0;
  virtual void OnVerdict(TimeNs now_ns, std::uint64_t hash) = 0;
};

// Reads parts in their order. Untrusted: records are checked as those of a ring are, and nothing is allocated that the bytes do not hold.
class JournalReader {
 public:
  JournalReader(std::string run, JournalSink* sink) : sink_(*sink), run_(std::move(run)) {}
  // INVALID_ARGUMENT: bytes that are no journal, or of another version; what was told before them stays told. Parts before the first that begins are
  // passed over: nothing of them could be understood.
  absl::Status Read(std::string_view part);

 private:
  bool ReadOne(std::uint64_t kind, ByteReader& in);
  bool ReadBeginning(ByteReader& in);
  bool ReadStep(ByteReader& in);
  bool ReadPresence(ByteReader& in);
  TimeNs GetTime(ByteReader& in);

  JournalSink& sink_;
  const std::string run_;
  JournalProducers producers_;
  TimeNs last_time_ns_ = 0;
  std::uint64_t last_sequence_ = 0;
  bool has_begun_ = false;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JUDGE_JOURNAL_H_
