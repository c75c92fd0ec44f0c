#include "server/main/pipeline.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "spdlog/spdlog.h"

namespace lossgauge::main {

struct Pipeline::Answer {
  std::function<void(const absl::Status& durable)> give;
};

// Shows the tap what the book takes.
class TappedSink final : public state::RecordSink {
 public:
  TappedSink(state::RecordSink* book, state::RecordTap* tap) : book_(book), tap_(tap) {}
  bool OnProducer(std::shared_ptr<const state::ProducerInfo> producer) override {
    const bool taken = book_->OnProducer(producer);
    if (taken) tap_->OnProducer(producer);
    return taken;
  }
  void OnSample(state::RankSample sample) override {
    tap_->OnSample(sample);
    book_->OnSample(std::move(sample));
  }
  void OnEvent(state::ProducerEvent event) override {
    tap_->OnEvent(event);
    book_->OnEvent(std::move(event));
  }
  void OnLiveness(const state::LivenessReport& report) override {
    tap_->OnLiveness(report);
    book_->OnLiveness(report);
  }
  void OnLoss(const state::LossReport& report) override {
    tap_->OnLoss(report);
    book_->OnLoss(report);
  }
  void OnProducerGone(const state::SegmentId& segment, state::TimeNs time_ns) override {
    tap_->OnProducerGone(segment);
    book_->OnProducerGone(segment, time_ns);
  }

 private:
  state::RecordSink* const book_;
  state::RecordTap* const tap_;
};

Pipeline::Pipeline(const PipelineOptions& options, state::Clock* clock, state::RunBook* book, state::Store* store, state::SnapshotBoard* board,
                   state::Mailbox* mailbox, std::vector<state::RecordSource*> sources, state::RecordTap* tap)
    : options_(options), clock_(clock), book_(book), store_(store), board_(board), mailbox_(mailbox), sources_(std::move(sources)), tap_(tap),
      watch_(clock, options.stuck_after_ns) {
  if (tap_ != nullptr) tapped_ = std::make_unique<TappedSink>(book_, tap_);
}

Pipeline::~Pipeline() { Stop(0); }

void Pipeline::HandleMailbox() {
  mailbox_->Drain(
      [this](state::Mailbox::Acknowledge& request, state::Mailbox::AcknowledgeDone& done) {
        auto incident = std::make_shared<state::Incident>();
        const absl::Status status = book_->Acknowledge(request, incident.get());
        answers_.push_back({[status, incident, done = std::move(done)](const absl::Status& durable) {
          const absl::Status& answer = status.ok() ? durable : status;
          done(answer, answer.ok() ? incident.get() : nullptr);
        }});
      },
      [this](state::Mailbox::Report& request, state::Mailbox::ReportDone& done) {
        std::uint64_t entries = 0;
        const absl::Status status = book_->Report(request, &entries);
        answers_.push_back({[status, entries, done = std::move(done)](const absl::Status& durable) {
          done(status.ok() ? durable : status, entries);
        }});
      },
      [this](state::Mailbox::SetMode& request, state::Mailbox::SetModeDone& done) {
        const absl::StatusOr<std::string> mode = book_->SetMode(request.run, request.mode);
        if (mode.ok()) spdlog::info("run {}: mode {} by {}; {} from now on", request.run, request.mode, request.by, *mode);
        answers_.push_back({[mode, done = std::move(done)](const absl::Status& durable) {
          done(mode.ok() ? durable : mode.status(), mode.value_or(""));
        }});
      });
}

void Pipeline::AnswerMailbox() {
  absl::Status durable;
  if (!commit_error_.empty()) {
    durable = absl::UnavailableError("taken, but it cannot be written to the state store now, and a restart before it can would lose it: " + commit_error_);
  }
  for (const Answer& answer : std::exchange(answers_, {})) answer.give(durable);
}

state::TimeNs Pipeline::CommitTime(state::TimeNs now_ns) {
  if (!uncommitted_since_ns_ || *uncommitted_since_ns_ > now_ns) uncommitted_since_ns_ = now_ns;  // or the clock was set back
  return book_->HasSettled() ? next_commit_ns_ : std::max(next_commit_ns_, *uncommitted_since_ns_ + options_.settle_wait_ns);
}

bool Pipeline::Commit(state::TimeNs now_ns) {
  const std::int64_t cpu_ns = clock_->ThreadCpuNs();
  watch_.Enter(DrainStage::kSpool);
  if (tap_ != nullptr) tap_->BeforeCommit(now_ns);
  watch_.Enter(DrainStage::kCommit);
  const absl::Status status = store_->Commit(book_->BuildTransaction(now_ns));
  watch_.Enter(DrainStage::kAnswer);
  if (status.ok()) {
    book_->OnCommitted();
    uncommitted_since_ns_.reset();
    for (state::RecordSource* source : sources_) source->OnCommitted(now_ns);
    if (!commit_error_.empty()) spdlog::info("state can be written again, after {} failures", commit_failures_in_a_row_);
    commit_error_.clear();
    commit_failures_in_a_row_ = 0;
    std::int64_t pause_ns = options_.commit_interval_ns;
    if (options_.commit_pause_factor > 0) {
      pause_ns = std::max({pause_ns, options_.commit_pause_factor * (clock_->ThreadCpuNs() - cpu_ns), 2 * (clock_->NowNs() - now_ns)});
    }
    next_commit_ns_ = now_ns + pause_ns;
    return true;
  }
  ++self_.state_write_errors;
  ++commit_failures_in_a_row_;
  const std::string error(status.ToString());
  if (error != commit_error_) spdlog::error("state cannot be written; monitoring goes on, a restart would lose what came since: {}", error);
  commit_error_ = error;
  next_commit_ns_ = now_ns + options_.retry_interval_ns;
  return false;
}

void Pipeline::Publish(state::TimeNs now_ns) {
  state::SelfView self = self_;
  for (const state::RecordSource* source : sources_) {
    const state::SourceStats& stats = source->stats();
    self.rings_attached += stats.rings_attached;
    self.names_repaired += stats.names_repaired;
    for (const auto& [cause, count] : stats.errors) self.ring_errors[cause] += count;
    for (const auto& [name, count] : stats.ingest) self.ingest[name] += count;
  }
  if (forward_view_) self.forward = forward_view_();
  board_->Publish(book_->BuildSnapshot(now_ns, std::move(self)));
}

void Pipeline::Prune(state::TimeNs now_ns) {
  watch_.Enter(DrainStage::kThin);
  const absl::StatusOr<bool> more = store_->Prune(now_ns);
  next_prune_ns_ = now_ns + (more.ok() && *more ? options_.prune_more_ns : options_.prune_interval_ns);
  const std::string error = more.ok() ? "" : std::string(more.status().ToString());
  if (!more.ok()) ++self_.state_write_errors;
  if (!more.ok() && error != prune_error_) spdlog::warn("old history can be neither thinned nor dropped: {}", error);
  prune_error_ = error;
}

std::int64_t Pipeline::RunCycle() {
  const state::TimeNs begin_ns = clock_->NowNs();
  watch_.Enter(DrainStage::kPoll);
  state::PollResult total;
  for (state::RecordSource* source : sources_) {
    const state::PollResult result = source->Poll(tapped_ ? *tapped_ : static_cast<state::RecordSink&>(*book_), *book_, begin_ns);
    total.records += result.records;
    total.more |= result.more;
    total.oldest_age_ns = std::max(total.oldest_age_ns, result.oldest_age_ns);
    total.live_producers += result.live_producers;
  }
  watch_.Enter(DrainStage::kAnswer);
  HandleMailbox();
  watch_.Enter(DrainStage::kJudge);
  book_->Advance(begin_ns, [this](const state::ProducerInfo& producer) {
    return std::all_of(sources_.begin(), sources_.end(), [&](const auto* source) { return source->Reaches(producer); });
  });
  ++self_.drain_cycles;
  if (total.records > 0) self_.drain_lag_seconds = static_cast<double>(total.oldest_age_ns) * 1e-9;

  const state::TimeNs now_ns = clock_->NowNs();
  bool may_publish = !book_->HasUncommitted();
  const state::TimeNs commit_ns = may_publish ? now_ns : CommitTime(now_ns);
  const bool is_due = now_ns >= commit_ns || stopping_now_ || (!answers_.empty() && commit_error_.empty());
  if (!may_publish && is_due) {
    may_publish = Commit(now_ns) || !commit_error_.empty();
  } else if (!commit_error_.empty()) {
    may_publish = true;
  }
  watch_.Enter(DrainStage::kAnswer);
  if (may_publish) AnswerMailbox();
  watch_.Enter(DrainStage::kSpool);
  if (tap_ != nullptr) tap_->AfterCycle(now_ns);
  if (now_ns >= next_prune_ns_) Prune(now_ns);

  watch_.Enter(DrainStage::kPublish);
  if (now_ns >= next_self_ns_) {
    next_self_ns_ = now_ns + 1'000'000'000;
    self_.state_bytes = store_->bytes();
    const state::HistoryCounts counts = store_->history_counts();
    self_.history_steps_thinned = counts.thinned;
    self_.history_steps_dropped_by_age = counts.dropped_by_age;
    self_.history_steps_dropped_by_size = counts.dropped_by_size;
    self_.history_steps_damaged = counts.dropped_damaged;
    if (may_publish) Publish(now_ns);
  } else if (may_publish && book_->HasNews()) {
    Publish(now_ns);
  }
  const state::TimeNs end_ns = clock_->NowNs();
  watch_.ComeRound();
  self_.drain_busy_seconds += static_cast<double>(end_ns - begin_ns) * 1e-9;
  if (total.more) return 0;
  if (!may_publish) return std::clamp<std::int64_t>(std::max(commit_ns, next_commit_ns_) - end_ns, 0, options_.live_sleep_ns);
  return total.live_producers > 0 || total.records > 0 ? options_.live_sleep_ns : options_.idle_sleep_ns;
}

void Pipeline::Loop() {
  bool may_step_back = options_.nice > 0;
  for (;;) {
    const std::int64_t cpu_ns = may_step_back ? clock_->ThreadCpuNs() : 0;
    const std::int64_t sleep_ns = RunCycle();
    if (may_step_back && clock_->ThreadCpuNs() - cpu_ns > options_.busy_cycle_ns) {
      // Of this thread alone, as Linux has it. Where it is not allowed, clients wait a little longer.
      (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + options_.nice);
      may_step_back = false;
    }
    std::unique_lock lock(mutex_);
    if (stop_) return;
    watch_.Enter(DrainStage::kPolicy);
    for (auto& task : std::exchange(tasks_, {})) task();
    watch_.Enter(DrainStage::kAsleep);
    if (sleep_ns > 0 && wake_.wait_for(lock, std::chrono::nanoseconds(sleep_ns), [this] { return stop_; })) return;
  }
}

void Pipeline::Post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
}

void Pipeline::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "lossgauge-drain");  // `ps -L` then shows what the thread waits for that must not wait
    Loop();
  });
}

void Pipeline::Stop(std::int64_t limit_ns) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  stopping_now_ = true;
  const state::TimeNs deadline = clock_->NowNs() + limit_ns;
  for (int quiet = 0; quiet < 2 && clock_->NowNs() < deadline;) quiet = RunCycle() > 0 ? quiet + 1 : 0;
}

}  // namespace lossgauge::main
