// The producers that a journal's entries name by number, and the record that each gave last, against which the next one is written.
#ifndef LOSSGAUGE_SERVER_STATE_JOURNAL_PRODUCERS_H_
#define LOSSGAUGE_SERVER_STATE_JOURNAL_PRODUCERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/state/byte_codec.h"
#include "server/state/records.h"

namespace lossgauge::state {

// Of a producer what a judge may look at; its run is the journal's.
void PutProducer(const ProducerInfo& info, ByteWriter* out);
// Nothing for a layout that no ring could have.
std::shared_ptr<const ProducerInfo> GetProducer(const std::string& run, ByteReader* in);

// The same calls on both sides give the same numbers. Bounded: whoever writes begins anew when there are many.
class JournalProducers {
 public:
  // Writing. 0 is nobody; a number that is_new has yet to be told.
  std::uint64_t Number(const std::shared_ptr<const ProducerInfo>& producer, bool* is_new);
  void PutRecord(std::uint64_t number, const lg_step_record& record, ByteWriter* out);
  // Reading.
  void Add(std::shared_ptr<const ProducerInfo> producer);
  // Null for 0, and for a number that nobody has.
  std::shared_ptr<const ProducerInfo> Find(std::uint64_t number) const;
  bool GetRecord(std::uint64_t number, ByteReader* in, lg_step_record* record);

  std::size_t size() const { return known_.size(); }
  void Clear();

 private:
  struct Known {
    std::shared_ptr<const ProducerInfo> producer;  // held, so that its address stays its own
    lg_step_record last{};
  };
  std::vector<Known> known_;
  std::unordered_map<const ProducerInfo*, std::uint64_t> numbers_;
};

}  // namespace lossgauge::state

#endif  // LOSSGAUGE_SERVER_STATE_JOURNAL_PRODUCERS_H_
