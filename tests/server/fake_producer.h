// A training job's rank as lossgauged sees it, without a job: valid records in real ring files, at the pace and with the values that a test
// chooses. It can die, stall, tear a record, lap its reader, write another ABI version or byte order, and jump its wall clock.
//
// Default values follow from (rank, step) alone, so that a test can work out every sum. Not thread-safe. Failure to set up aborts with a
// sentence. The lock is an open-file-description lock: F_GETLK of the same process sees it, and it goes when the producer dies.
#ifndef LOSSGAUGE_TESTS_SERVER_FAKE_PRODUCER_H_
#define LOSSGAUGE_TESTS_SERVER_FAKE_PRODUCER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/lossgauge/ring/fixed128.h"
#include "proto/lossgauge/ring/ring_writer.h"

namespace lossgauge::testing {

struct FakeProducerOptions {
  std::string directory;
  std::string run = "fake";
  std::string attempt = "1";
  std::int64_t attempt_start_wall_ns = 1'700'000'000'000'000'000;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;       // plain data parallel, unless `layout` is changed afterwards by `edit_identity`
  std::uint64_t segment_id[2] = {0, 0};  // zeros: random
  std::uint64_t published = 0;        // as if so many step records had gone before
  bool with_events = true;
  bool with_lock = true;
  // Last word on the step ring's (and event ring's) header before it is written: other ABI, byte order, sizes, layout, names.
  std::function<void(lg_ring_identity*)> edit_identity;
};

class FakeProducer {
 public:
  explicit FakeProducer(FakeProducerOptions options);
  ~FakeProducer();  // like Die(): files stay
  FakeProducer(const FakeProducer&) = delete;
  FakeProducer& operator=(const FakeProducer&) = delete;

  // A healthy step: 100 + rank tokens, all unmasked and finite, loss 2 + 1 / (1 + step) nats a token (exact in fixed point or nearly),
  // every optional word but reported_loss present.
  lg_step_record MakeStep(std::int64_t step) const;
  // Fills in totals and times and publishes. Times: boot clock now, wall clock now + wall_offset_ns, unless the record has its own boot_ns.
  void Publish(lg_step_record record);
  void PublishStep(std::int64_t step) { Publish(MakeStep(step)); }
  void PublishSteps(std::int64_t first, std::int64_t last);  // both included
  void PublishEvent(std::uint64_t kind, std::int64_t step, const std::string& text = "", double value = 0, std::uint64_t count = 0,
                    std::uint64_t phase = LG_PHASE_TRAIN);

  void Beat();                                   // heartbeat now
  void BeatAt(std::int64_t heartbeat_boot_ns);   // ... or whenever: a stalled producer
  void SetPhase(std::uint64_t phase);
  void Close(std::uint64_t how = LG_CLOSE_FINISHED, const std::string& reason = "");  // END event, closed word; the lock stays until Die
  void Die();                                    // lock released, nothing said
  void Tear(std::int64_t step);                  // begins a record and stops half way; nothing may be published afterwards
  // Flips one bit of a word of the newest step record: its checksum fails.
  void Corrupt(std::uint64_t word);

  std::int64_t wall_offset_ns = 0;
  std::int64_t boot_step_ns = 0;  // > 0: the boot clock written is base + step * boot_step_ns instead of now

  const lg_step_record& last() const { return last_; }  // with totals; totals are zero before the first step
  std::uint64_t published() const;                      // step records
  std::uint64_t published_events() const;
  const lg_ring_identity& identity() const { return identity_; }
  const std::string& key() const { return key_; }
  std::string steps_path() const { return options_.directory + "/" + key_ + ".steps"; }
  std::string events_path() const { return options_.directory + "/" + key_ + ".events"; }
  std::string lock_path() const { return options_.directory + "/" + key_ + ".lock"; }

 private:
  struct File;
  FakeProducerOptions options_;
  lg_ring_identity identity_{};
  std::string key_;
  lg_step_record last_{};
  std::unique_ptr<File> steps_file_;
  std::unique_ptr<File> events_file_;
  int lock_fd_ = -1;
};

// Runs `body` in a child process (which ends with _exit(0) after it) and returns its pid.
pid_t ForkProducer(const std::function<void()>& body);
// SIGKILL and reap.
void KillProducer(pid_t pid);

}  // namespace lossgauge::testing

#endif  // LOSSGAUGE_TESTS_SERVER_FAKE_PRODUCER_H_
