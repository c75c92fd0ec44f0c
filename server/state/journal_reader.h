// Tells what a run's judge was told, out of the bytes of its journal (judge_journal.h).
#ifndef LOSSGAUGE_SERVER_STATE_JOURNAL_READER_H_
#define LOSSGAUGE_SERVER_STATE_JOURNAL_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/state/byte_codec.h"
#include "server/state/journal_producers.h"
#include "server/state/judge.h"
#include "server/state/policy_view.h"

namespace lossgauge::state {

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
  bool ReadProducer(ByteReader& in);
  bool ReadStep(ByteReader& in);
  bool ReadEvent(ByteReader& in);
  bool ReadLoss(ByteReader& in);
  bool ReadPresence(ByteReader& in);
  bool ReadAction(ByteReader& in);
  bool ReadAcknowledgement(ByteReader& in);
  bool ReadMode(ByteReader& in);
  bool ReadSibling(ByteReader& in);
  bool ReadPolicy(ByteReader& in);
  bool ReadVerdict(ByteReader& in);
  TimeNs GetTime(ByteReader& in);
  bool GetLiveness(ByteReader& in, LivenessReport* report);

  JournalSink& sink_;
  const std::string run_;
  JournalProducers producers_;
  TimeNs last_time_ns_ = 0;
  std::uint64_t last_sequence_ = 0;
  bool has_begun_ = false;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JOURNAL_READER_H_
