#include "server/main/drain_watch.h"

#include "absl/strings/str_cat.h"

namespace lossgauge::main {
namespace {

const char* Doing(DrainStage stage) {
  switch (stage) {
    case DrainStage::kAsleep:
      return "asleep between two cycles: this process was stopped, or gets no CPU";
    case DrainStage::kPolicy:
      return "changing its policy";
    case DrainStage::kPoll:
      return "reading what came in";
    case DrainStage::kAnswer:
      return "answering requests and senders";
    case DrainStage::kJudge:
      return "judging steps";
    case DrainStage::kSpool:
      return "writing the spool of --forward_to: the disk under --state_dir does not answer";
    case DrainStage::kCommit:
      return "writing its state: the disk under --state_dir does not answer";
    case DrainStage::kThin:
      return "thinning its history: the disk under --state_dir does not answer";
    case DrainStage::kPublish:
      return "publishing what it knows";
  }
  return "at an unknown stage";
}

bool IsOfTheDisk(DrainStage stage) {
  return stage == DrainStage::kSpool || stage == DrainStage::kCommit || stage == DrainStage::kThin;
}

}  // namespace

absl::Status DrainWatch::Check(std::int64_t limit_ns, DrainStage stage) const {
  const std::int64_t still_ns = clock_->NowNs() - round_ns_.load(std::memory_order_relaxed);
  if (still_ns < limit_ns) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the drain thread has stood still for ", still_ns / 1'000'000'000, " s, ", Doing(stage)));
}

absl::Status DrainWatch::CheckGoing() const { return Check(stuck_after_ns_, stage_.load(std::memory_order_relaxed)); }

absl::Status DrainWatch::CheckNotHung() const {
  const DrainStage stage = stage_.load(std::memory_order_relaxed);
  return IsOfTheDisk(stage) ? absl::OkStatus() : Check(kHungFactor * stuck_after_ns_, stage);
}

}  // namespace lossgauge::main
