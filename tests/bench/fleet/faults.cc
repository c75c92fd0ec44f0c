#include "tests/bench/fleet/faults.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lossgauge::fleet {
namespace {

struct Known {
  const char* name;
  bool of_rank;
  double amount;  // if none is given
};
constexpr std::array<Known, static_cast<std::size_t>(FaultKind::kCount)> kKnown{{{"denominator", true, 2},
                                                                                 {"loss", true, 0.8},
                                                                                 {"agreement", true, 0.01},
                                                                                 {"missing", true, 0},
                                                                                 {"dies", true, 0},
                                                                                 {"drop", false, 0},
                                                                                 {"skew", false, 300},
                                                                                 {"restart", false, 0},
                                                                                 {"duplicate", false, 0},
                                                                                 {"reorder", false, 2}}};

absl::Status Wrong(absl::string_view word) {
  std::string names;
  for (const Known& known : kKnown) absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
  return absl::InvalidArgumentError(absl::StrCat("fault \"", word, "\": KIND@NUMBER:FIRST-LAST[:AMOUNT] was expected, KIND one of ", names));
}

}  // namespace

const char* FaultName(FaultKind kind) { return kKnown[static_cast<std::size_t>(kind)].name; }
bool IsOfRank(FaultKind kind) { return kKnown[static_cast<std::size_t>(kind)].of_rank; }

absl::StatusOr<std::vector<Fault>> ParseFaults(std::string_view text) {
  std::vector<Fault> faults;
  for (const absl::string_view word : absl::StrSplit(absl::string_view(text.data(), text.size()), ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(word, ':');
    const std::vector<absl::string_view> head = absl::StrSplit(parts[0], '@');
    if (parts.size() < 2 || parts.size() > 3 || head.size() != 2) return Wrong(word);
    const auto known = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& one) { return head[0] == one.name; });
    const std::vector<absl::string_view> span = absl::StrSplit(parts[1], '-');
    Fault fault;
    if (known == kKnown.end() || span.size() != 2 || !absl::SimpleAtoi(head[1], &fault.at) || !absl::SimpleAtoi(span[0], &fault.first) ||
        !absl::SimpleAtoi(span[1], &fault.last) || fault.first < 0 || fault.last < fault.first) {
      return Wrong(word);
    }
    fault.kind = static_cast<FaultKind>(known - kKnown.begin());
    fault.amount = known->amount;
    if (parts.size() == 3 && (!absl::SimpleAtod(parts[2], &fault.amount) || !std::isfinite(fault.amount))) return Wrong(word);
    faults.push_back(fault);
  }
  return faults;
}

std::optional<Expected> ExpectedOf(const Fault& fault, std::uint32_t tensor_parallel) {
  switch (fault.kind) {
    case FaultKind::kDenominator: return Expected{"accounting", "denominator", fault.at, fault.first};
    // The group's first rank stands for the group.
    case FaultKind::kLoss: return Expected{"rank_outlier", "", fault.at - fault.at % tensor_parallel, fault.first};
    case FaultKind::kAgreement: return Expected{"integrity", "agreement", fault.at, fault.first};
    case FaultKind::kMissing: return Expected{"rank_missing", "", fault.at, fault.first};
    case FaultKind::kDies: return Expected{"producer_lost", "", fault.at, std::nullopt};
    default: return std::nullopt;
  }
}

std::vector<Fault> StandardFaults(std::uint32_t ranks, std::uint32_t tensor_parallel, std::uint32_t nodes) {
  // The loss is judged from 32 accepted values on; an incident of a rank closes after 30 clean steps.
  const auto rank = [&](double share) { return static_cast<std::uint32_t>(share * (ranks - 1)); };
  const auto node = [&](std::uint32_t number) { return number % nodes; };
  std::vector<Fault> faults = {
      {FaultKind::kSkew, node(1), 0, 0, 300},        {FaultKind::kSkew, node(2), 0, 0, -86'400},   {FaultKind::kDenominator, rank(0.3), 60, 69, 2},
      {FaultKind::kDuplicate, node(0), 70, 90, 0},   {FaultKind::kReorder, node(3), 72, 90, 2},    {FaultKind::kLoss, rank(0.7), 120, 129, 0.8},
      {FaultKind::kDrop, node(1), 130, 150, 0},      {FaultKind::kRestart, node(2), 152, 152, 0},  {FaultKind::kMissing, rank(0.5), 180, 184, 0}};
  // Not the first rank of its group, so that the group's sums stay right; and of two ranks that disagree none could be named.
  if (tensor_parallel > 2) faults.push_back({FaultKind::kAgreement, rank(0.9) | 1, 210, 214, 0.01});
  faults.push_back({FaultKind::kDrop, node(3), 220, 225, 0});
  faults.push_back({FaultKind::kDies, rank(0.2) | 1, 255, 255, 0});
  return faults;
}

std::int64_t LastStep(const std::vector<Fault>& faults) {
  std::int64_t last = 0;
  for (const Fault& fault : faults) last = std::max(last, fault.last);
  return last;
}

}  // namespace lossgauge::fleet
