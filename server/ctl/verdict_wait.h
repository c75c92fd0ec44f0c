// Waits for a verdict that a script wants to act upon, over as many connections as that takes.
#ifndef LOSSGAUGE_SERVER_CTL_VERDICT_WAIT_H_
#define LOSSGAUGE_SERVER_CTL_VERDICT_WAIT_H_

#include <grpcpp/grpcpp.h>

#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "server/ctl/connection.h"
#include "server/ctl/exit_codes.h"

namespace lossgauge::ctl {

struct WaitOptions {
  std::set<Outcome> wanted;  // any of these ends the wait
  std::string attempt;       // only verdicts on this attempt count; empty = on any
  absl::Duration limit = absl::InfiniteDuration();
  // How long lossgauged may be out of reach, or not know the run: it is being restarted, or the job has not opened its rings yet.
  absl::Duration patience = absl::Minutes(1);
  absl::Duration stream_life = absl::Seconds(30);  // a stream is opened anew after this long: one whose other end is stopped says nothing
};

struct WaitResult {
  Outcome outcome = Outcome::kUnreachable;  // one that was wanted, kTimeout or kUnreachable
  std::optional<v1::Verdict> verdict;       // the last one that came
  std::optional<grpc::Status> failed;       // what no further waiting mends: `outcome` then says nothing
  grpc::Status last_error;                  // of kUnreachable
};

// Blocks. Uses no thread of its own.
WaitResult WaitForVerdict(Connection& connection, const std::string& run, const WaitOptions& options);

// OK, or DATA_LOSS if `verdict_untrusted` is of another run than was asked for.
grpc::Status CheckAnswer(const std::string& run, const v1::Verdict& verdict_untrusted);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_VERDICT_WAIT_H_
