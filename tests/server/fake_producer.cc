#include "tests/server/fake_producer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

#include "proto/lossgauge/ring/boot_id.h"

namespace lossgauge::testing {
namespace {

[[noreturn]] void Abort(const std::string& what) {
  std::fprintf(stderr, "fake producer: %s: %s\n", what.c_str(), std::strerror(errno));
  std::abort();
}

std::int64_t ClockNs(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::uint64_t HashText(const char* text) {
  std::uint64_t hash = 0;
  for (; *text != 0; ++text) hash = lg_ring_mix(hash + static_cast<unsigned char>(*text) + 1);
  return hash;
}

}  // namespace

struct FakeProducer::File {
  File(const std::string& path, const lg_ring_identity& identity, std::uint64_t published)
      : bytes(ring::RingFileBytes(identity.slot_bytes, identity.slot_count)) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0) Abort("open " + path);
    if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
      errno = error;
      Abort("reserve space for " + path);
    }
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) Abort("mmap " + path);
    writer = std::make_unique<ring::RingWriter<>>(base, identity, published);
  }
  ~File() { munmap(base, bytes); }
  lg_ring_header* header() { return static_cast<lg_ring_header*>(base); }
  std::uint64_t* Slot(std::uint64_t publication) {
    const lg_ring_identity& id = header()->identity;
    return reinterpret_cast<std::uint64_t*>(static_cast<unsigned char*>(base) + id.header_bytes +
                                            (publication - 1) % id.slot_count * id.slot_bytes);
  }

  std::size_t bytes;
  void* base = nullptr;
  std::unique_ptr<ring::RingWriter<>> writer;
};

FakeProducer::FakeProducer(FakeProducerOptions options) : options_(std::move(options)) {
  lg_ring_identity& id = identity_;
  ring::SetFormat(&id, LG_RING_KIND_STEPS);
  id.segment_id[0] = options_.segment_id[0];
  id.segment_id[1] = options_.segment_id[1];
  if (id.segment_id[0] == 0 && id.segment_id[1] == 0) {
    std::random_device random;
    for (auto& word : id.segment_id) word = std::uint64_t{random()} << 32 | random();
  }
  (void)ring::ReadBootId(id.boot_id);
  id.created_boot_ns = ClockNs(CLOCK_BOOTTIME);
  id.created_wall_ns = ClockNs(CLOCK_REALTIME);
  id.attempt_start_wall_ns = options_.attempt_start_wall_ns;
  id.producer_pid = static_cast<std::uint32_t>(getpid());
  id.producer_uid = geteuid();
  lg_layout& layout = id.layout;
  layout.world_size = options_.world_size;
  layout.rank = options_.rank;
  layout.dp = {options_.world_size, options_.rank};
  layout.tp = layout.pp = layout.cp = layout.ep = {1, 0};
  layout.has_loss = 1;
  layout.gradient_reduction = LG_GRADIENT_REDUCTION_MEAN;
  layout.shard_columns = layout.vocab_size = 1000;
  std::strncpy(id.run, options_.run.c_str(), sizeof id.run - 1);
  std::strncpy(id.attempt, options_.attempt.c_str(), sizeof id.attempt - 1);
  std::strncpy(id.block_names[0], "train", LG_BLOCK_NAME_BYTES - 1);
  std::strncpy(id.block_names[1], "eval", LG_BLOCK_NAME_BYTES - 1);
  if (options_.edit_identity) options_.edit_identity(&id);

  char key[96];
  std::snprintf(key, sizeof key, "%016llx-r%u-%016llx%016llx", static_cast<unsigned long long>(HashText(options_.run.c_str())),
                options_.rank, static_cast<unsigned long long>(id.segment_id[0]), static_cast<unsigned long long>(id.segment_id[1]));
  key_ = key;
  if (options_.with_lock) {
    lock_fd_ = open(lock_path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (lock_fd_ < 0) Abort("open " + lock_path());
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    if (fcntl(lock_fd_, F_OFD_SETLK, &lock) != 0) Abort("lock " + lock_path());
  }
  if (options_.with_events) {
    lg_ring_identity events = id;
    events.kind = LG_RING_KIND_EVENTS;
    events.slot_bytes = LG_EVENT_SLOT_BYTES;
    events.slot_count = LG_EVENT_SLOT_COUNT;
    events.record_words = LG_EVENT_SLOT_BYTES / 8;
    events_file_ = std::make_unique<File>(events_path(), events, 0);
  }
  steps_file_ = std::make_unique<File>(steps_path(), id, options_.published);
  Beat();
}

FakeProducer::~FakeProducer() { Die(); }

lg_step_record FakeProducer::MakeStep(std::int64_t step) const {
  const std::uint64_t tokens = 100 + options_.rank;
  const auto sum = [&](double per_token) { return lg_fixed128_from_double(per_token * static_cast<double>(tokens)); };
  const double loss = 2.0 + 1.0 / (1.0 + static_cast<double>(step));
  lg_step_record r{};
  r.present = LG_HAS_LOSS | LG_HAS_LOGITS | LG_HAS_OBJECTIVE | LG_HAS_DENOMINATOR | LG_HAS_LOGIT_GRAD | LG_HAS_MASS | LG_HAS_GRAD_NORM |
              LG_HAS_LEARNING_RATE | LG_HAS_TARGET_BYTES | LG_HAS_WORST_ROW | LG_HAS_WORST_LOGIT;
  r.step = step;
  r.micro_batches = 1;
  r.tokens = r.unmasked_tokens = r.finite_tokens = tokens;
  r.nll_sum = sum(loss);
  r.z_loss_sum = sum(1.0 / 1024);
  r.objective_sum = lg_fixed128_add(r.nll_sum, r.z_loss_sum);
  r.target_bytes = 4 * tokens;
  r.scored_nll_sum = r.nll_sum;
  // Gradients are averaged over plain data-parallel ranks: all divide by the mean count.
  r.denominator_min = r.denominator_max = 100.0 + (options_.world_size - 1) / 2.0;
  r.log_z_sum = sum(8.0);
  r.log_z_sq_sum = sum(64.0);
  r.log_z_max = 9.0;
  r.max_abs_logit = 20.0;
  r.logit_grad_sq_sum = sum(0.25);
  r.grad_norm = 1.0;
  r.probability_mass = lg_fixed128_from_int64(static_cast<std::int64_t>(tokens));
  r.target_hits = tokens;
  r.correct_tokens = tokens / 2;
  r.mask_fingerprint = lg_ring_mix(static_cast<std::uint64_t>(step) * 2 + 1) + options_.rank;
  r.target_fingerprint = lg_ring_mix(static_cast<std::uint64_t>(step) * 2) + options_.rank;
  r.worst_row_nll = 4 * loss;
  r.worst_row_position = 17;
  r.worst_row_target = 5;
  r.worst_logit_position = 23;
  r.worst_logit_column = 7;
  r.first_nonfinite_row = -1;
  r.learning_rate = 1.0 / 4096;
  return r;
}

void FakeProducer::Publish(lg_step_record r) {
  if (r.boot_ns == 0) {
    r.boot_ns = boot_step_ns > 0 ? identity_.created_boot_ns + r.step * boot_step_ns : ClockNs(CLOCK_BOOTTIME);
  }
  r.wall_ns = ClockNs(CLOCK_REALTIME) + wall_offset_ns;
  if (r.block == 0) {
    r.total_steps = last_.total_steps + 1;
    r.total_tokens = last_.total_tokens + r.tokens;
    r.total_unmasked_tokens = last_.total_unmasked_tokens + r.unmasked_tokens;
    r.total_finite_tokens = last_.total_finite_tokens + r.finite_tokens;
    r.total_nonfinite_rows = last_.total_nonfinite_rows + r.nonfinite_rows;
    r.total_bad_targets = last_.total_bad_targets + r.bad_targets;
    r.total_target_bytes = last_.total_target_bytes + r.target_bytes;
    r.total_nonfinite_grad_rows = last_.total_nonfinite_grad_rows + r.nonfinite_grad_rows;
    r.total_nll_sum = lg_fixed128_add(last_.total_nll_sum, r.nll_sum);
    r.total_scored_nll_sum = lg_fixed128_add(last_.total_scored_nll_sum, r.scored_nll_sum);
    r.total_z_loss_sum = lg_fixed128_add(last_.total_z_loss_sum, r.z_loss_sum);
    r.total_correct_tokens = last_.total_correct_tokens + r.correct_tokens;
    r.total_clamped_rows = last_.total_clamped_rows + r.clamped_rows;
    r.total_mass_error_rows = last_.total_mass_error_rows + r.mass_error_rows;
    r.total_nonfinite_steps = last_.total_nonfinite_steps + (r.nonfinite_rows + r.nonfinite_grad_rows > 0 ? 1 : 0);
    last_ = r;
  }
  steps_file_->writer->Publish(r);
  lg_ring_status* status = steps_file_->writer->status();
  ring::StoreRelaxed(&status->enqueued_step, r.step);
  ring::StoreRelaxed(&status->published_step, r.step);
  ring::StoreRelaxed(&status->entered_step, r.step);
  ring::StoreRelaxed(&status->last_call, LG_CALL_PUBLISH);
  ring::StoreRelaxed(&status->last_call_boot_ns, r.boot_ns);
}

void FakeProducer::PublishSteps(std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) PublishStep(step);
}

void FakeProducer::PublishEvent(std::uint64_t kind, std::int64_t step, const std::string& text, double value, std::uint64_t count,
                                std::uint64_t phase) {
  lg_event_record e{};
  e.kind = kind;
  e.step = step;
  e.boot_ns = ClockNs(CLOCK_BOOTTIME);
  e.wall_ns = ClockNs(CLOCK_REALTIME) + wall_offset_ns;
  e.phase = phase;
  e.value = value;
  e.count = count;
  e.text_bytes = text.size();
  std::memcpy(e.text, text.data(), std::min<std::size_t>(text.size(), LG_EVENT_TEXT_BYTES));
  events_file_->writer->Publish(e);
}

void FakeProducer::Beat() { BeatAt(ClockNs(CLOCK_BOOTTIME)); }

void FakeProducer::BeatAt(std::int64_t heartbeat_boot_ns) {
  for (File* file : {steps_file_.get(), events_file_.get()}) {
    if (file != nullptr) ring::StoreRelease(&file->writer->status()->heartbeat_boot_ns, heartbeat_boot_ns);
  }
}

void FakeProducer::SetPhase(std::uint64_t phase) {
  ring::StoreRelaxed(&steps_file_->writer->status()->phase, phase);
  ring::StoreRelaxed(&steps_file_->writer->status()->phase_since_boot_ns, ClockNs(CLOCK_BOOTTIME));
  Beat();
}

void FakeProducer::Close(std::uint64_t how, const std::string& reason) {
  if (events_file_) PublishEvent(LG_EVENT_END, last_.total_steps > 0 ? last_.step : -1, reason, 0, how);
  ring::StoreRelease(&steps_file_->writer->status()->closed, how);
}

void FakeProducer::Die() {
  if (lock_fd_ >= 0) close(lock_fd_);
  lock_fd_ = -1;
}

void FakeProducer::Tear(std::int64_t step) {
  lg_step_record r = MakeStep(step);
  std::uint64_t words[sizeof r / 8];
  std::memcpy(words, &r, sizeof r);
  const std::uint64_t number = published() + 1;
  std::uint64_t* slot = steps_file_->Slot(number);
  ring::StoreRelaxed(&slot[0], 2 * number - 1);
  for (std::size_t i = 1; i < sizeof r / 16; ++i) ring::StoreRelease(&slot[i], words[i]);
}

void FakeProducer::Corrupt(std::uint64_t word) {
  std::uint64_t* slot = steps_file_->Slot(published());
  ring::StoreRelease(&slot[word], __atomic_load_n(&slot[word], __ATOMIC_RELAXED) ^ 1);
}

std::uint64_t FakeProducer::published() const { return steps_file_->writer->published(); }
std::uint64_t FakeProducer::published_events() const { return events_file_ ? events_file_->writer->published() : 0; }

pid_t ForkProducer(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid < 0) Abort("fork");
  if (pid == 0) {
    body();
    _exit(0);
  }
  return pid;
}

void KillProducer(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace lossgauge::testing
