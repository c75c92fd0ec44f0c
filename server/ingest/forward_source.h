// What sidecars forward, as a source: batches out of the inbox, each publication handed over once, each batch acknowledged once the store has it.
//
// Who sends what: a segment belongs to the sender that told of it first, for as long as that one's stream is open, however long it is silent. What
// another sender says of it is refused. A sender that says nonsense loses its stream, and its other runs nothing. Drain thread only.
#ifndef LOSSGAUGE_SERVER_INGEST_FORWARD_SOURCE_H_
#define LOSSGAUGE_SERVER_INGEST_FORWARD_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/ingest/forward_items.h"
#include "server/ingest/inbox.h"
#include "server/state/clock.h"
#include "server/state/source.h"

namespace lossgauge::ingest {

struct ForwardSourceOptions {
  std::int64_t unreachable_after_ns = 5'000'000'000;  // a sender says something every second
  std::int64_t retry_refused_ns = 5'000'000'000;      // a refused producer is asked for again
  std::int64_t forget_after_ns = std::int64_t{3600} * 1'000'000'000;  // a producer of which nothing more comes
  std::size_t max_senders = 4096;
  std::size_t max_producers = 65'536;
  std::size_t max_runs_per_sender = 0;  // that are not over; 0: no limit
  std::size_t max_runs_per_client = 0;  // of all senders of one; a run that several of them have counts once. 0: no limit
  std::size_t poll_batches = 256;  // of one poll
};

class ForwardSource final : public state::RecordSource {
 public:
  // `inbox` and `clock` outlive the source.
  ForwardSource(const ForwardSourceOptions& options, Inbox* inbox, state::Clock* clock);
  ~ForwardSource() override;

  state::PollResult Poll(state::RecordSink& sink, const state::CursorLookup& cursors, state::TimeNs now_ns) override;
  void OnCommitted(state::TimeNs now_ns) override;
  const state::SourceStats& stats() const override { return stats_; }
  // Its sender is connected, was heard of late, and has sent what it held when it came.
  bool Reaches(const state::ProducerInfo& producer) const override;

 private:
  struct Sender;
  struct Producer {
    std::shared_ptr<const state::ProducerInfo> info;
    Sender* owner = nullptr;
    enum class Fate { kAsked, kAdmitted, kRefused, kOver } fate = Fate::kAsked;  // kOver: all of it was delivered, and its run is done with
    state::TimeNs next_ask_ns = 0;
    std::uint64_t next_steps = 1;
    std::uint64_t next_events = 1;
    // Nothing was ever had of the ring, and of the producer not its beginning: what came before the first record here is not missing.
    bool are_steps_new = true;
    bool are_events_new = true;
    std::uint64_t lost_before = 0;
    bool alive = false;
    bool is_claimed = false;  // counts in its owner's runs
    state::TimeNs last_item_ns = 0;
    std::uint64_t held_by = 0;  // the batch in whose `held` it stands last, and where
    std::size_t held_at = 0;
  };
  // What a batch has of one producer: it is kept once the store's cursor is past it.
  struct Held {
    state::SegmentId segment;
    std::uint64_t steps_end = 0;
    std::uint64_t events_end = 0;
  };
  struct Unacknowledged {
    std::uint64_t number = 0;  // of all batches ever read here
    std::uint64_t sequence = 0;
    std::vector<Held> held;
  };
  struct Sender {
    std::string id;
    std::string node;
    std::uint32_t step_words = kStepWords;
    std::shared_ptr<SenderLink> link;  // null: not connected
    state::TimeNs last_heard_ns = 0;
    std::uint64_t newest_at_hello = 0;
    std::uint64_t received = 0;
    std::unordered_map<std::uint32_t, Producer*> by_number;
    std::deque<Unacknowledged> unacknowledged;
    std::map<std::string, std::size_t> runs;       // its producers that are not over, by run
    std::string client;                            // InboxEntry::client of its last stream
    std::map<std::string, std::uint64_t> refused;  // by cause, for the log
  };
  struct SegmentHash {
    std::size_t operator()(const state::SegmentId& id) const { return static_cast<std::size_t>(id.words[0] ^ id.words[1]); }
  };
  struct BatchTimes {
    state::TimeNs now_ns = 0;
    std::uint64_t sent_ns = 0;
    // The sender's clock as ours, by the age at the moment of sending; never in the future.
    state::TimeNs Ours(std::uint64_t sender_ns) const;
  };

  void Open(InboxEntry* entry, state::TimeNs now_ns);
  void Close(const SenderLink* link);
  void ReadBatch(Sender* sender, const v1::Batch& batch, state::TimeNs now_ns);
  absl::Status ReadItem(Sender* sender, const v1::Item& item, const BatchTimes& times, Unacknowledged* held);
  absl::Status TellProducer(Sender* sender, const v1::Item::Producer& item, state::TimeNs now_ns);
  // Whether the book takes the producer, and from where on.
  void Ask(Sender* sender, Producer* producer, state::TimeNs now_ns);
  // The producer if items of it are to be looked at; null if they are refused or over. An error if the number was never told.
  absl::StatusOr<Producer*> Find(Sender* sender, std::uint32_t number, const char* what, state::TimeNs now_ns);
  absl::Status ReadSteps(Sender* sender, const v1::Item::StepRecords& item, const BatchTimes& times, Unacknowledged* held);
  void TakeStep(Sender* sender, Producer* producer, std::uint64_t publication, const char* words, state::TimeNs received_ns, state::TimeNs now_ns);
  absl::Status ReadEvent(Sender* sender, const v1::Item::EventRecord& item, const BatchTimes& times, Unacknowledged* held);
  absl::Status ReadLost(Sender* sender, const v1::Item::LostRange& item, const BatchTimes& times, Unacknowledged* held);
  absl::Status ReadLiveness(Sender* sender, const v1::Item::Liveness& item, const BatchTimes& times);
  // Publications from the next expected one to before `first` will not come.
  void CountGap(Producer* producer, bool events, std::uint64_t first, state::TimeNs now_ns);
  void ReportLoss(Producer* producer, bool events, state::LossReason reason, std::uint64_t first, std::uint64_t records, state::TimeNs time_ns);
  // What the store holds by now of the batches of one sender, of all.
  void AcknowledgeKept(Sender* sender);
  void AcknowledgeKept();
  static std::string Described(const state::ProducerInfo& info);
  void Refuse(Sender* sender, const char* cause, const std::string& what);
  void Hold(Unacknowledged* held, Producer* producer);
  // Whether the producer is the sender's, from now on if nobody else's stream that told of it is open.
  bool Own(Sender* sender, Producer* producer);
  // False: its owner, or the owner's client, has as many runs as one may; then it is refused and counted.
  bool Claim(Producer* producer, state::TimeNs now_ns);
  void Release(Producer* producer);
  // The sender comes from `client` now, and what it has claimed counts there.
  void MoveTo(const std::string& client, Sender* sender);
  void RefuseForRuns(Producer* producer, const char* limit, const std::string& whose, std::size_t runs, state::TimeNs now_ns);
  void Forget(state::TimeNs now_ns);
  bool IsHeard(const Sender& sender, state::TimeNs now_ns) const;

  const ForwardSourceOptions options_;
  Inbox* const inbox_;
  state::Clock* const clock_;
  state::RecordSink* sink_ = nullptr;             // of the present poll
  const state::CursorLookup* cursors_ = nullptr;  // of the last one
  std::map<std::string, std::unique_ptr<Sender>> senders_;
  std::unordered_map<const SenderLink*, Sender*> by_link_;
  std::map<std::string, std::map<std::string, std::size_t>> runs_of_clients_;  // the sums of Sender::runs; no entry is empty
  std::unordered_map<state::SegmentId, std::unique_ptr<Producer>, SegmentHash> producers_;
  state::RankSample sample_;
  state::TimeNs next_forget_ns_ = 0;
  std::uint64_t batches_read_ = 0;
  state::PollResult result_;
  state::SourceStats stats_;
};

}  // namespace lossgauge::ingest

#endif  // LOSSGAUGE_SERVER_INGEST_FORWARD_SOURCE_H_
