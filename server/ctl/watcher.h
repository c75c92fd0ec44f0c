// Verdicts and steps of a run as they come, over two streams and, if need be, many connections.
#ifndef LOSSGAUGE_SERVER_CTL_WATCHER_H_
#define LOSSGAUGE_SERVER_CTL_WATCHER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/ctl/connection.h"

namespace lossgauge::ctl {

// A stream that breaks is opened again with growing pauses, the one of the steps from the last sequence number seen: nothing is missed that
// lossgauged still keeps, and nothing comes twice. Its own threads read the streams; one thread calls the rest.
class Watcher {
 public:
  // `silence`: a verdict stream speaks at least every 30 s; one that does not for this long has lost its other end and is opened anew.
  Watcher(Connection& connection, std::string run, std::chrono::milliseconds silence = std::chrono::seconds(45));
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // The newest steps, for the sparkline; also finds out whether there is such a run at all. Before Start().
  grpc::Status LoadHistory(std::int32_t steps);
  void Start();

  struct News {
    std::vector<v1::Step> steps;
    std::optional<v1::Verdict> verdict;  // the newest
    std::uint64_t skipped = 0;           // steps that lossgauged no longer kept
    bool connected = true;
    std::optional<grpc::Status> failed;  // what no new connection can mend; nothing more will come
  };
  // Waits until there is something new, at most `patience`.
  News Next(std::chrono::milliseconds patience);

  // Losses of the newest steps, oldest first; of steps that have one.
  std::deque<double> History();

 private:
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::thread thread;
  };
  // Runs one connection; says by `received` whether anything came.
  using OpenStream = std::function<grpc::Status(grpc::ClientContext* context, bool* received)>;

  void Keep(Stream* stream, const OpenStream& open_stream);
  grpc::Status ReadVerdicts(grpc::ClientContext* context, bool* received);
  grpc::Status ReadSteps(grpc::ClientContext* context, bool* received);
  void Remember(const v1::Step& step);
  void Heard();  // with mutex_ held

  Connection& connection_;
  const std::string run_;
  const std::chrono::milliseconds silence_;
  std::uint64_t last_sequence_ = 0;  // before Start(), then the step thread's alone
  std::size_t history_limit_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  bool connected_ = true;
  bool broke_ = false;  // since the last Next(): a break is told though the connection may be back already
  std::chrono::steady_clock::time_point last_heard_;
  News news_;
  std::deque<double> history_;
  Stream verdicts_;
  Stream steps_;
};

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_WATCHER_H_
