#include "server/ctl/watcher.h"

#include <algorithm>
#include <utility>

namespace lossgauge::ctl {
namespace {

constexpr std::chrono::milliseconds kFirstPause{250};
constexpr std::chrono::milliseconds kLongestPause{5000};

bool IsFinal(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return true;
    default:
      return false;
  }
}

}  // namespace

Watcher::Watcher(Connection& connection, std::string run, std::chrono::milliseconds silence)
    : connection_(connection), run_(std::move(run)), silence_(silence), last_heard_(std::chrono::steady_clock::now()) {}

Watcher::~Watcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Stream* stream : {&verdicts_, &steps_}) {
      if (stream->context) stream->context->TryCancel();
    }
  }
  changed_.notify_all();
  for (Stream* stream : {&verdicts_, &steps_}) {
    if (stream->thread.joinable()) stream->thread.join();
  }
}

grpc::Status Watcher::LoadHistory(std::int32_t steps) {
  v1::ListStepsRequest request;
  request.set_run(run_);
  request.set_tail(steps);
  request.set_page_size(steps);
  v1::ListStepsResponse answer;
  const auto context = connection_.NewContext();
  const grpc::Status status = connection_.stub().ListSteps(context.get(), request, &answer);
  history_limit_ = static_cast<std::size_t>(steps);
  for (const v1::Step& step : answer.steps()) {
    Remember(step);
    last_sequence_ = step.sequence();
  }
  return status;
}

void Watcher::Start() {
  verdicts_.thread = std::thread([this] {
    Keep(&verdicts_, [this](grpc::ClientContext* context, bool* received) { return ReadVerdicts(context, received); });
  });
  steps_.thread = std::thread([this] {
    Keep(&steps_, [this](grpc::ClientContext* context, bool* received) { return ReadSteps(context, received); });
  });
}

Watcher::News Watcher::Next(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return !news_.steps.empty() || news_.verdict || news_.failed || broke_; });
  if (std::chrono::steady_clock::now() - last_heard_ > silence_) {
    connected_ = false;
    last_heard_ = std::chrono::steady_clock::now();  // the new connections have as long again
    for (Stream* stream : {&verdicts_, &steps_}) {
      if (stream->context) stream->context->TryCancel();
    }
  }
  News news = std::exchange(news_, News());
  const bool broke = std::exchange(broke_, false);
  news.connected = connected_ && !broke;
  return news;
}

std::deque<double> Watcher::History() {
  const std::lock_guard lock(mutex_);
  return history_;
}

// One connection after the other, until the end or an error that is final.
void Watcher::Keep(Stream* stream, const OpenStream& open_stream) {
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    grpc::ClientContext* context = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      stream->context = std::make_unique<grpc::ClientContext>();
      context = stream->context.get();
    }
    bool received = false;
    const grpc::Status status = open_stream(context, &received);
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    connected_ = false;
    broke_ = true;
    changed_.notify_all();
    if (IsFinal(status)) {
      news_.failed = status;
      return;
    }
    pause = received ? kFirstPause : std::min(pause * 2, kLongestPause);
    changed_.wait_for(lock, pause, [this] { return stopping_; });
  }
}

grpc::Status Watcher::ReadVerdicts(grpc::ClientContext* context, bool* received) {
  v1::WatchVerdictRequest request;
  request.set_run(run_);
  const auto reader = connection_.stub().WatchVerdict(context, request);
  v1::Verdict verdict;
  while (reader->Read(&verdict)) {
    *received = true;
    const std::lock_guard lock(mutex_);
    Heard();
    news_.verdict = verdict;
    changed_.notify_all();
  }
  return reader->Finish();
}

grpc::Status Watcher::ReadSteps(grpc::ClientContext* context, bool* received) {
  v1::WatchStepsRequest request;
  request.set_run(run_);
  if (last_sequence_ > 0) request.set_after_sequence(last_sequence_);
  const auto reader = connection_.stub().WatchSteps(context, request);
  v1::WatchStepsResponse message;
  while (reader->Read(&message)) {
    *received = true;
    const std::lock_guard lock(mutex_);
    Heard();
    news_.skipped += message.skipped();
    for (const v1::Step& step : message.steps()) {
      if (step.sequence() <= last_sequence_) continue;
      last_sequence_ = step.sequence();
      news_.steps.push_back(step);
      Remember(step);
    }
    changed_.notify_all();
  }
  return reader->Finish();
}

void Watcher::Heard() {
  connected_ = true;
  last_heard_ = std::chrono::steady_clock::now();
}

void Watcher::Remember(const v1::Step& step) {
  if (!step.has_loss_nats()) return;
  history_.push_back(step.loss_nats());
  if (history_.size() > history_limit_) history_.pop_front();
}

}  // namespace lossgauge::ctl
