// One open stream: a source that knows what comes next (api::StepWatch, api::VerdictWatch, HealthWatch) and at most one message in flight.
// A client that does not read holds that one message and the source's cursor, no more; nothing is queued for it.
#ifndef LOSSGAUGE_SERVER_RPC_WATCH_REACTOR_H_
#define LOSSGAUGE_SERVER_RPC_WATCH_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/bounded_executor.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/watch_hub.h"
#include "server/state/board.h"
#include "server/state/clock.h"

namespace lossgauge::rpc {

// What every stream needs of the server.
struct StreamContext {
  const state::SnapshotBoard& board;
  state::Clock& clock;
  WatchHub& hub;
  BoundedExecutor& executor;
  const CallGate& gate;
};

// Source: Message; bool NeedsHistory(const Snapshot&); absl::StatusOr<bool> Next(const Snapshot&, TimeNs now, Message*).
//
// The source is touched by whoever set `pulling_`, the message by gRPC while `writing_`. The mutex is never held across a call into gRPC: it
// may run callbacks of this stream on the same thread before it returns.
template <typename Source>
class WatchReactor final : public grpc::ServerWriteReactor<typename Source::Message>,
                           public Watcher,
                           public std::enable_shared_from_this<WatchReactor<Source>> {
 public:
  // The reactor to give to gRPC; it keeps itself alive until gRPC is done with it. An error in `source` ends the stream with it.
  // `slot`: what CallGate::Stream gave, held until the stream is over; an error ends it likewise.
  static grpc::ServerWriteReactor<typename Source::Message>* Open(const StreamContext& context, absl::StatusOr<std::shared_ptr<void>> slot,
                                                                  absl::StatusOr<Source> source) {
    auto reactor = std::make_shared<WatchReactor>(context, Key{});
    reactor->self_ = reactor;
    absl::Status status = slot.ok() ? source.status() : slot.status();
    if (status.ok()) {
      reactor->slot_ = *std::move(slot);
      reactor->source_.emplace(std::move(*source));
      status = context.hub.Add(reactor);
    }
    if (status.ok()) {
      reactor->Pull(context.board.Get());
    } else {
      reactor->End(status);
    }
    return reactor.get();
  }

  void Wake(const std::shared_ptr<const state::Snapshot>& snapshot) override { Pull(snapshot); }

  void End(const absl::Status& status) override {
    const auto keep = this->shared_from_this();
    {
      std::lock_guard lock(mutex_);
      if (!ending_) ending_ = status;
      if (writing_ || pulling_ || finished_) return;  // whoever is at work finishes
      finished_ = true;
    }
    this->Finish(ToGrpcStatus(status));
  }

  void OnWriteDone(bool ok) override {
    const auto keep = this->shared_from_this();
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok && !ending_) ending_ = absl::CancelledError("the client is gone");
    }
    Pull(context_.board.Get());
  }

  void OnCancel() override { End(absl::CancelledError("cancelled by the client")); }

  void OnDone() override {
    context_.hub.Remove(this);
    self_.reset();
  }

  struct Key {};
  WatchReactor(const StreamContext& context, Key) : context_(context) {}

 private:
  // Sends what is next, if a message may be sent now.
  void Pull(std::shared_ptr<const state::Snapshot> snapshot) {
    const auto keep = this->shared_from_this();
    std::optional<absl::Status> finish;
    {
      std::lock_guard lock(mutex_);
      if (finished_ || writing_) return;
      if (pulling_) {
        again_ = true;
        return;
      }
      finish = ending_;
      finished_ = finish.has_value();
      pulling_ = !finished_;
    }
    if (finish) {
      this->Finish(ToGrpcStatus(*finish));
    } else if (!source_->NeedsHistory(*snapshot)) {
      PullNow(std::move(snapshot));
    } else if (!context_.executor.TryPost([keep, snapshot] { keep->PullNow(snapshot); })) {
      std::lock_guard lock(mutex_);
      pulling_ = false;  // the next tick tries again
    }
  }

  void PullNow(std::shared_ptr<const state::Snapshot> snapshot) {
    bool write = false;
    std::optional<absl::Status> finish;
    while (true) {
      message_.Clear();
      const absl::StatusOr<bool> next = source_->Next(*snapshot, context_.clock.NowNs(), &message_);
      std::lock_guard lock(mutex_);
      if (!next.ok() && !ending_) ending_ = next.status();
      if (!ending_ && !*next && again_) {  // news came while we looked
        again_ = false;
        snapshot = context_.board.Get();
        continue;
      }
      pulling_ = false;
      again_ = false;
      write = !ending_ && *next;
      writing_ = write;
      finish = ending_;
      finished_ = finish.has_value();
      if (!write && !finish) return;
      break;
    }
    if (write) {
      this->StartWrite(&message_);
    } else {
      this->Finish(ToGrpcStatus(*finish));
    }
  }

  const StreamContext context_;
  std::shared_ptr<WatchReactor> self_;
  std::shared_ptr<void> slot_;
  std::optional<Source> source_;
  typename Source::Message message_;

  std::mutex mutex_;
  bool pulling_ = false;
  bool again_ = false;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<absl::Status> ending_;
};

}  // namespace lossgauge::rpc

#endif  // LOSSGAUGE_SERVER_RPC_WATCH_REACTOR_H_
