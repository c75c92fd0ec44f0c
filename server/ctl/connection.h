// The way to lossgauged, and what to tell a person when there is none.
#ifndef LOSSGAUGE_SERVER_CTL_CONNECTION_H_
#define LOSSGAUGE_SERVER_CTL_CONNECTION_H_

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lossgauge/v1/lossgauge.grpc.pb.h"
#include "server/ctl/options.h"
#include "server/ctl/terminal.h"

namespace lossgauge::ctl {

// Exit codes. A verdict adds its own (verdict.cc).
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;  // no answer, no such run, a file that is no ring
inline constexpr int kWrongUse = 2;

class Connection {
 public:
  // Connects when first used, never through a proxy: it is mostly loopback, where a proxy from the environment would only be in the way.
  Connection(const Options& options, const Io& io);

  v1::LossGauge::Stub& stub() { return *stub_; }
  const std::string& address() const { return address_; }
  absl::Duration timeout() const { return timeout_; }
  // For calls that are answered once: with the deadline of --timeout.
  std::unique_ptr<grpc::ClientContext> NewContext() const;
  // Says on io.err what went wrong, where, and what to do about it; returns the exit code.
  int Explain(const grpc::Status& status, Io& io) const;

 private:
  std::string address_;
  std::string authorization_;  // "" = none
  absl::Status setup_;  // what is wrong with address, certificates or token
  absl::Duration timeout_;
  std::unique_ptr<v1::LossGauge::Stub> stub_;
};

// One message as JSON: lowerCamelCase names, 64-bit integers as strings, as under /api/v1/. One line, or indented. Times out of JSON's range (years 1 to
// 9999) are left out.
std::string ToJson(const google::protobuf::Message& message, bool indent);

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_CONNECTION_H_
