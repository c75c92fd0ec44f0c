#include "server/replay/live_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/lossgauge/ring/boot_id.h"
#include "proto/lossgauge/ring/ring_writer.h"
#include "server/replay/step_record.h"

namespace lossgauge::replay {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A ring holds 64 events: half of them at once, and then one in so long, are never more than lossgauged has seen a second later.
constexpr std::int64_t kEventPause = kSecond / 25;
constexpr std::int64_t kEventCredit = LG_EVENT_SLOT_COUNT / 2 * kEventPause;

std::int64_t Now(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return std::int64_t{t.tv_sec} * kSecond + t.tv_nsec;
}

void Sleep(std::int64_t nanoseconds) {
  timespec t{nanoseconds / kSecond, nanoseconds % kSecond};
  nanosleep(&t, nullptr);
}

std::uint64_t HashText(std::string_view text) {
  std::uint64_t hash = 0;
  for (const char c : text) hash = lg_ring_mix(hash + static_cast<unsigned char>(c) + 1);
  return hash;
}

// A file that is mapped and reserved, or the reason why not.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }
  absl::Status Create(int directory, const std::string& name, std::size_t bytes) {
    const int file = openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (file < 0) return absl::ErrnoToStatus(errno, name);
    const int full = posix_fallocate(file, 0, static_cast<off_t>(bytes));
    bytes_ = bytes;
    if (full == 0) base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int error = full != 0 ? full : errno;
    close(file);
    return base_ == MAP_FAILED ? absl::ErrnoToStatus(error, name) : absl::OkStatus();
  }
  void* base() const { return base_; }

 private:
  void* base_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

}  // namespace

class LiveRing::Segment {
 public:
  ~Segment() {
    if (lock_ >= 0) close(lock_);
  }

  absl::Status Create(const std::string& directory, const std::string& run, const std::string& attempt, std::int64_t attempt_start_wall_ns) {
    const int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0) return absl::ErrnoToStatus(errno, directory);
    const absl::Status status = CreateIn(folder, run, attempt, attempt_start_wall_ns);
    close(folder);
    return status.ok() ? status : absl::Status(status.code(), absl::StrCat(directory, "/", status.message()));
  }

  void Publish(const LogPoint& point) {
    lg_step_record record = MakeStepRecord(point);
    AddToTotals(last_, &record);
    record.boot_ns = Now(CLOCK_BOOTTIME);
    record.wall_ns = Now(CLOCK_REALTIME);
    last_ = record;
    steps_->Publish(record);
    lg_ring_status* status = steps_->status();
    ring::StoreRelaxed(&status->entered_step, record.step);
    ring::StoreRelaxed(&status->enqueued_step, record.step);
    ring::StoreRelaxed(&status->published_step, record.step);
    ring::StoreRelaxed(&status->last_call, LG_CALL_PUBLISH);
    ring::StoreRelaxed(&status->last_call_boot_ns, record.boot_ns);
  }

  void PublishEvent(std::uint64_t kind, std::int64_t step, std::string_view text, double value, std::uint64_t count,
                    std::uint64_t phase = LG_PHASE_TRAIN) {
    lg_event_record event{};
    event.kind = kind;
    event.phase = phase;
    event.step = step;
    event.boot_ns = Now(CLOCK_BOOTTIME);
    event.wall_ns = Now(CLOCK_REALTIME);
    event.value = value;
    event.count = count;
    event.text_bytes = text.size();
    std::memcpy(event.text, text.data(), std::min<std::size_t>(text.size(), LG_EVENT_TEXT_BYTES));
    events_->Publish(event);
  }

  void Beat() {
    for (auto* writer : {steps_.get(), events_.get()}) ring::StoreRelease(&writer->status()->heartbeat_boot_ns, Now(CLOCK_BOOTTIME));
  }

  void Close(const std::optional<LogJobEvent>& failure) {
    const std::uint64_t closed = failure ? LG_CLOSE_FAILED : LG_CLOSE_FINISHED;
    PublishEvent(LG_EVENT_END, last_step(), failure ? std::string_view(failure->text) : "end of the log", 0, closed);
    Beat();
    ring::StoreRelease(&steps_->status()->closed, closed);
  }

  std::int64_t last_step() const { return last_.total_steps > 0 ? last_.step : -1; }

 private:
  absl::Status CreateIn(int folder, const std::string& run, const std::string& attempt, std::int64_t attempt_start_wall_ns) {
    lg_ring_identity identity{};
    ring::SetFormat(&identity, LG_RING_KIND_STEPS);
    std::random_device random;
    for (auto& word : identity.segment_id) word = std::uint64_t{random()} << 32 | random();
    (void)ring::ReadBootId(identity.boot_id);
    identity.created_boot_ns = Now(CLOCK_BOOTTIME);
    identity.created_wall_ns = Now(CLOCK_REALTIME);
    identity.attempt_start_wall_ns = attempt_start_wall_ns;
    identity.producer_pid = static_cast<std::uint32_t>(getpid());
    identity.producer_uid = geteuid();
    lg_layout& layout = identity.layout;
    layout.world_size = 1;
    layout.dp = layout.tp = layout.pp = layout.cp = layout.ep = {1, 0};
    layout.has_loss = 1;
    run.copy(identity.run, sizeof identity.run - 1);
    attempt.copy(identity.attempt, sizeof identity.attempt - 1);
    std::strncpy(identity.block_names[0], "train", LG_BLOCK_NAME_BYTES - 1);
    const std::string key = absl::StrFormat("%016x-r0-%016x%016x", HashText(run), identity.segment_id[0], identity.segment_id[1]);

    // The lock first: a ring without one is of a producer that died.
    lock_ = openat(folder, (key + ".lock").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (lock_ < 0) return absl::ErrnoToStatus(errno, key + ".lock");
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    if (fcntl(lock_, F_OFD_SETLK, &lock) != 0) return absl::ErrnoToStatus(errno, key + ".lock");

    lg_ring_identity events = identity;
    ring::SetFormat(&events, LG_RING_KIND_EVENTS);
    absl::Status status = events_file_.Create(folder, key + ".events", ring::RingFileBytes(events.slot_bytes, events.slot_count));
    if (status.ok()) {
      events_ = std::make_unique<ring::RingWriter<>>(events_file_.base(), events);
      status = steps_file_.Create(folder, key + ".steps", ring::RingFileBytes(identity.slot_bytes, identity.slot_count));
    }
    if (status.ok()) {
      steps_ = std::make_unique<ring::RingWriter<>>(steps_file_.base(), identity);
      return status;
    }
    for (const char* suffix : {".lock", ".events", ".steps"}) unlinkat(folder, (key + suffix).c_str(), 0);
    return status;
  }

  MappedFile steps_file_, events_file_;
  std::unique_ptr<ring::RingWriter<>> steps_, events_;
  lg_step_record last_{};
  int lock_ = -1;
};

LiveRing::LiveRing(LiveRingOptions options)
    : options_([&] {
        if (!options.sleep) options.sleep = Sleep;
        options.points_per_second = std::clamp(options.points_per_second, 0.001, kMostPointsPerSecond);
        return std::move(options);
      }()),
      start_wall_ns_(Now(CLOCK_REALTIME)) {}

LiveRing::~LiveRing() = default;

void LiveRing::BeginAttempt(const LogPoint& point) {
  if (segment_) segment_->Close(failure_);
  failure_.reset();
  attempt_ = point.attempt;
  event_credit_ns_ = kEventCredit;
  segment_ = std::make_unique<Segment>();
  // A log that is fed again is another attempt, not the same one gone back.
  const std::string name = absl::StrCat(attempt_names_.Name(point), "@", start_wall_ns_ / kSecond);
  status_ = segment_->Create(options_.directory, options_.run, name, Now(CLOCK_REALTIME));
  if (!status_.ok()) {
    segment_.reset();
    return;
  }
  if (const auto resume = ResumeBefore(point, resume_)) segment_->PublishEvent(LG_EVENT_RESUME, resume->step, resume->text, 0, 0);
  resume_.reset();
}

void LiveRing::OnPoint(const LogPoint& point) {
  if (!status_.ok()) return;
  if (point.attempt != attempt_ && attempt_names_.size() >= kMaxAttempts) {
    status_ = absl::ResourceExhaustedError(absl::StrCat("line ", point.line, " begins one attempt more than the ", kMaxAttempts, " that are fed"));
    return;
  }
  if (point.attempt != attempt_) BeginAttempt(point);
  if (!status_.ok()) return;
  segment_->Publish(point);
  ++published_;
  Wait(static_cast<std::int64_t>(1e9 / options_.points_per_second));
}

void LiveRing::Wait(std::int64_t nanoseconds) {
  event_credit_ns_ = std::min(kEventCredit, event_credit_ns_ + nanoseconds);
  for (std::int64_t left = nanoseconds; left > 0; left -= kSecond) {
    segment_->Beat();
    options_.sleep(std::min(left, kSecond));
  }
}

void LiveRing::PaceEvent() {
  if (event_credit_ns_ < kEventPause) Wait(kEventPause);
  event_credit_ns_ -= kEventPause;
}

void LiveRing::OnEvaluation(const LogEvaluation& evaluation) {
  if (!status_.ok() || !segment_) return;
  PaceEvent();
  segment_->PublishEvent(LG_EVENT_EVALUATION, evaluation.step.value_or(segment_->last_step()), "", evaluation.loss_nats, 0);
}

void LiveRing::OnCheckpoint(const LogCheckpoint& checkpoint) {
  if (!status_.ok() || !segment_) return;
  PaceEvent();
  segment_->PublishEvent(LG_EVENT_CHECKPOINT, checkpoint.step, checkpoint.path, 0, 0);
}

void LiveRing::OnJobEvent(const LogJobEvent& event) {
  if (event.kind == LogJobEvent::kResume) {
    resume_ = event;
  } else if (event.kind == LogJobEvent::kEnd) {
    if (event.failed) failure_ = event;
  } else if (status_.ok() && segment_) {
    PaceEvent();
    const bool begins = event.kind == LogJobEvent::kPhaseBegin;
    segment_->PublishEvent(begins ? LG_EVENT_PHASE_BEGIN : LG_EVENT_PHASE_END, event.step, "", 0, 0, event.phase);
  }
}

void LiveRing::Finish() {
  if (segment_) segment_->Close(failure_);
}

}  // namespace lossgauge::replay
