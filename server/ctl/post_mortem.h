// The calls of lossgauge.v1.PostMortem: what a bundle holds for `replay`. A lossgauged that is older than they are has none of it.
#ifndef LOSSGAUGE_SERVER_CTL_POST_MORTEM_H_
#define LOSSGAUGE_SERVER_CTL_POST_MORTEM_H_

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lossgauge/v1/post_mortem.grpc.pb.h"
#include "server/ctl/connection.h"

namespace lossgauge::ctl {

struct TimeSpan {
  std::optional<google::protobuf::Timestamp> first, last;  // unset: all there is
};

class PostMortem {
 public:
  // `connection` outlives it.
  explicit PostMortem(const Connection& connection);

  // Calls `use` with each part, until it says false. DATA_LOSS for a server whose pages have no end.
  grpc::Status Journal(const std::string& run, const TimeSpan& span, const std::function<bool(const v1::JournalPart& part)>& use);
  // Those that are kept, newest first for each version.
  grpc::Status Policies(const std::string& run, const std::set<std::string>& versions, std::vector<v1::KeptPolicy>* out);

 private:
  const Connection& connection_;
  std::unique_ptr<v1::PostMortem::Stub> stub_;
};

}  // namespace lossgauge::ctl

#endif  // LOSSGAUGE_SERVER_CTL_POST_MORTEM_H_
