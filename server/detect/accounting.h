// Did the job divide by the right number of tokens? Judged where every data-parallel rank is visible and the denominator was given.
#ifndef LOSSGAUGE_SERVER_DETECT_ACCOUNTING_H_
#define LOSSGAUGE_SERVER_DETECT_ACCOUNTING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/state/incident.h"
#include "server/state/joined_step.h"

namespace lossgauge::detect {

// A wrong accounting, named: the first hypothesis that explains the numbers.
struct AccountingFinding {
  std::string_view kind;  // of state::kAccountingKinds
  std::string hypothesis; // "factor_R", "mean_of_means", "rank_only", ...; a word for programs
  std::optional<std::uint32_t> rank;  // if it is one rank's fault
  std::string summary;
  std::vector<state::Evidence> evidence;
};

// Pure. The denominator is D when gradients are summed over R data-parallel ranks and D / R when they are averaged, D = unmasked tokens over
// one rank per tensor-parallel group and all micro-batches. nullopt: right, or not to be judged.
std::optional<AccountingFinding> CheckDenominator(const state::JoinedStep& joined);

}  // namespace lossgauge::detect

#endif  // LOSSGAUGE_SERVER_DETECT_ACCOUNTING_H_
