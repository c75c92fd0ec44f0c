// A sender that does what bytes tell it to: the input of a fuzzer as a program.
#ifndef LOSSGAUGE_TESTS_FUZZ_INGEST_HOSTILE_SENDER_H_
#define LOSSGAUGE_TESTS_FUZZ_INGEST_HOSTILE_SENDER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "server/ingest/forward_items.h"
#include "tests/fuzz/ingest_daemon.h"

namespace lossgauge::fuzz {

// The input as numbers; zeros behind its end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint64_t Word() {
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word |= std::uint64_t{Byte()} << (8 * i);
    return word;
  }
  // Small ones mostly: only they meet what was said before.
  std::uint64_t Number() {
    const std::uint8_t byte = Byte();
    return byte < 250 ? byte : Word();
  }
  double Double() {
    const std::uint64_t word = Word();
    double value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  std::string Text() {
    std::string text(std::min<std::size_t>(left_, Byte()), '\0');
    for (char& c : text) c = static_cast<char>(Byte());
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

// A hostile sender; its batch grows by items until it is sent.
class Hostile {
 public:
  Hostile(Daemon* daemon, char name) : daemon_(daemon), id_(16, name) { Connect(0, 0); }

  void Do(Bytes& in) {
    switch (in.Byte() % 12) {
      case 0: return Connect(in.Byte() % 3, in.Byte() % 4);
      case 1: return AddRaw(in);
      case 2:
      case 3: return Tell(in);
      case 4:
      case 5: return AddSteps(in);
      case 6: return AddEvent(in);
      case 7: return AddLost(in);
      case 8: return AddLiveness(in);
      case 9: batch_.add_items()->set_gone(static_cast<std::uint32_t>(in.Number())); return;
      case 10: return Flush(in.Byte());
      default: daemon_->Disconnect(link_); return;
    }
  }
  void Flush(std::uint8_t how) {
    if (how == 255) batch_.set_sent_ns(1);
    daemon_->Send(link_, &batch_, how == 0 ? 0 : ++sequence_);
    batch_.Clear();
  }

 private:
  void Connect(std::uint32_t minor, std::uint32_t further_words) {
    words_ = ingest::kStepWords + further_words;
    link_ = daemon_->Connect(id_, minor, words_);
  }
  void AddRaw(Bytes& in) {
    v1::Batch raw;
    const std::string text = in.Text();
    (void)raw.ParseFromString(text);  // as far as it goes
    for (v1::Item& item : *raw.mutable_items()) batch_.add_items()->Swap(&item);
  }
  void Tell(Bytes& in) {
    static constexpr std::array<const char*, 6> kRuns = {"a", "b", "c", "d", "\xff\n\"", ""};
    const auto number = static_cast<std::uint32_t>(in.Number());
    const std::uint8_t segment = in.Byte();
    // 255: the honest one's own.
    state::ProducerInfo info = Producer(segment == 255 ? 1000 : segment % 32, kRuns[in.Byte() % kRuns.size()], in.Byte() % 8, 1 + in.Byte() % 8);
    info.attempt = std::string(1, static_cast<char>('1' + in.Byte() % 3));
    v1::Item::Producer* item = batch_.add_items()->mutable_producer();
    ingest::WriteProducer(info, number, item);
    const std::uint8_t odd = in.Byte();
    if (odd & 1) item->mutable_layout()->set_sizes(in.Byte() % 5, static_cast<std::uint32_t>(in.Number()));
    if (odd & 2) item->mutable_layout()->set_indices(in.Byte() % 5, static_cast<std::uint32_t>(in.Number()));
    if (odd & 4) item->mutable_layout()->set_shard_columns(static_cast<std::int64_t>(in.Word()));
    if (odd & 8) item->mutable_layout()->set_shard_offset(static_cast<std::int64_t>(in.Word()));
    if (odd & 16) item->mutable_layout()->set_vocab_size(static_cast<std::int64_t>(in.Word()));
    if (odd & 32) item->set_attempt_start_ns(static_cast<std::int64_t>(in.Word()));
    if (odd & 64) item->add_block_names(in.Text());
    if (odd & 128) item->set_run("x" + in.Text());
  }
  void AddSteps(Bytes& in) {
    v1::Item::StepRecords* item = batch_.add_items()->mutable_steps();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    const std::uint64_t first = in.Number();
    item->set_first_publication(first);
    item->set_received_ns(in.Number());
    const int count = 1 + in.Byte() % 4;
    const auto step = static_cast<std::int64_t>(in.Number());
    for (int i = 0; i < count; ++i) {
      lg_step_record record = Record(std::min<std::int64_t>(std::max<std::int64_t>(step, -1), 1 << 20));
      record.step = static_cast<std::int64_t>(static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(i));
      auto* words = reinterpret_cast<char*>(&record) + 8;
      for (int changes = in.Byte() % 8; changes > 0; --changes) {
        const std::size_t place = in.Byte() % ingest::kStepWords;
        const std::uint64_t value = in.Number();
        std::memcpy(words + 8 * place, &value, 8);
      }
      item->mutable_words()->append(words, std::size_t{ingest::kStepWords} * 8);
      item->mutable_words()->append((words_ - ingest::kStepWords) * std::size_t{8}, 'x');
    }
    if (in.Byte() == 255) item->mutable_words()->pop_back();
  }
  void AddEvent(Bytes& in) {
    v1::Item::EventRecord* item = batch_.add_items()->mutable_event();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    item->set_publication(in.Number());
    item->set_kind(in.Number());
    item->set_step(static_cast<std::int64_t>(in.Number()));
    item->set_phase(in.Number());
    item->set_value(in.Double());
    item->set_count(in.Number());
    item->set_text(in.Text());
    item->set_wall_ns(static_cast<std::int64_t>(in.Number()));
    item->set_received_ns(in.Number());
  }
  void AddLost(Bytes& in) {
    v1::Item::LostRange* item = batch_.add_items()->mutable_lost();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    item->set_events(in.Byte() % 2 == 1);
    item->set_first_publication(in.Number());
    item->set_records(in.Number());
    item->set_reason(in.Byte());
    item->set_noticed_ns(in.Number());
  }
  void AddLiveness(Bytes& in) {
    v1::Item::Liveness* item = batch_.add_items()->mutable_liveness();
    item->set_producer(static_cast<std::uint32_t>(in.Number()));
    item->set_state(in.Byte());
    item->set_closed(in.Byte());
    item->set_drained(in.Byte() % 2 == 1);
    item->set_heartbeat_age_ns(in.Number());
    item->set_enqueued_step(static_cast<std::int64_t>(in.Number()));
    item->set_published_step(static_cast<std::int64_t>(in.Number()));
    item->set_entered_step(static_cast<std::int64_t>(in.Number()));
    item->set_last_call(in.Byte());
    item->set_last_call_age_ns(in.Number());
    item->set_phase(in.Byte());
    item->set_phase_age_ns(in.Number());
    item->set_seen_ns(in.Number());
  }

  Daemon* const daemon_;
  const std::string id_;
  std::uint32_t words_ = 0;
  std::shared_ptr<Link> link_;
  v1::Batch batch_;
  std::uint64_t sequence_ = 0;
};

}  // namespace lossgauge::fuzz

#endif  // LOSSGAUGE_TESTS_FUZZ_INGEST_HOSTILE_SENDER_H_
